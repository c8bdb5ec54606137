"""The page of `dfl-report`: what stands where, in which words, and how it gets into one file."""
