"""Many runs: studies, their statistics, and the pages that compare them. No room of a single run imports it."""
