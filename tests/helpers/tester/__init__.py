"""One tester for every policy: what is shipped, the runs it is put through, and the same runs under other ids."""
