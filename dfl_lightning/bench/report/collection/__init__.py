"""Collections of runs: folders that hold runs, studies and cells."""
