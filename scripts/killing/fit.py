"""`dfl-fit` as a file, which Lightning starts again for every further process."""

from dfl_lightning.cli.main import fit

if __name__ == "__main__":
    fit()
