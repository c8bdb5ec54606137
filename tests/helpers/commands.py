"""The words of a small run."""

SMALL = [
    *["--config", "afind", "--trainer.max_rounds", "1", "--data.num_clients", "6", "--data.samples_per_client", "30"],
    *["--model.network.hidden", "[8]", "--model.local_epochs", "1", "--trainer.accelerator", "cpu"],
]
