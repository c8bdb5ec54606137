"""`dfl-study` as a file."""

from dfl_lightning.bench.study.main import study

if __name__ == "__main__":
    study()
