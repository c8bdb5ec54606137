"""`dfl-report FOLDER --watch`: a table of all runs below a folder, served on this machine."""
