"""`dfl-study` as a file."""

from dfl_lightning.study.main import study

if __name__ == "__main__":
    study()
