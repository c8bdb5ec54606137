"""Studies: a paper's table as one file, its cells as resumable runs, its numbers with their spread.

The rest of the library is used through configs, the command `dfl-fit` and the folders that its runs leave.
"""
