"""Names of options in other programs (fluke, Flower, FedLab, FedML, PFLlib, Lightning), and our options for them."""

from __future__ import annotations

import re

_MEANT: dict[tuple[str, ...], str] = {
    ("trainer.max_rounds",): (
        "rounds round n_rounds num_rounds max_round server_rounds num_server_rounds comm_round comm_rounds com_round "
        "communication_rounds global_rounds global_epochs iterations num_iterations max_epochs"
    ),
    ("model.local_epochs", "trainer.max_rounds"): "epoch epochs n_epochs num_epochs",
    ("model.local_epochs",): "local_ep local_epoch local_epochs num_local_epochs client_epochs",
    ("model.local_steps",): "steps num_steps local_iterations local_iters num_local_steps",
    ("model.batch_size",): "b bs bsz lbs batch batchsize batch_size local_bs local_batch_size train_batch_size",
    ("model.batch_growth",): "batch_increase batch_size_growth batch_schedule",
    ("model.optimizer.lr",): "lr learning_rate local_lr local_learning_rate client_lr eta",
    ("model.optimizer.momentum",): "momentum",
    ("model.optimizer.weight_decay",): "wd weight_decay l2",
    ("model.optimizer",): "optim opt client_optimizer",
    ("model.lr_scheduler",): "scheduler lr_schedule",
    ("model.network",): "net arch architecture backbone model_name",
    ("model.network.hidden",): "hidden hidden_size hidden_dim hidden_dims",
    ("model.loss",): "criterion loss_fn",
    ("data",): "dataset datasets dataset_name data_name",
    ("data.num_clients",): (
        "clients num_clients n_clients nc client_num client_num_in_total total_client total_clients num_supernodes "
        "num_users n_users users n_nodes nodes num_parties n_parties num_agents n_agents agents num_peers peers"
    ),
    ("data.num_clients", "trainer.num_nodes"): "num_nodes",
    ("data.root",): "data_dir datadir data_path data_root dataset_dir root",
    ("data.val_fraction",): "val_split val_ratio valid_ratio val_fraction",
    ("data.test_fraction",): "test_split test_ratio test_fraction",
    ("data.partition",): "partition_method distribution split_method",
    ("data.partition.alpha",): "alpha dirichlet dirichlet_alpha dir_alpha partition_alpha",
    ("data.partition.classes",): "classes_per_client class_per_client shards_per_client",
    ("data.partition.clusters",): "clusters n_clusters num_clusters",
    ("selection.k",): (
        "k neighbors neighbours num_neighbors n_neighbors n_neighbours num_neighbours frac fraction_fit fraction_train "
        "sample_ratio sampling_rate join_ratio client_fraction eligible_perc clients_per_round client_num_per_round"
    ),
    ("config", "selection"): "method algorithm algo alg",
    ("selection", "trainer.strategy"): "strategy",
    ("selection",): "sampler selector client_selection",
    ("aggregation",): "aggregator agg aggregation_method",
    ("aggregation.server_step",): "server_lr global_lr server_learning_rate",
    ("objective.mu",): "mu prox_mu fedprox_mu proximal_mu",
    ("topology",): "graph graph_type degree network_topology",
    ("dropout.rate",): "dropout_rate drop_rate drop_prob failure_prob",
    ("outgoing",): "attack compression",
    ("seed_everything",): "seed random_seed rng_seed manual_seed",
    ("trainer.devices", "trainer.accelerator"): "gpus n_gpus num_gpus gpu_ids",
    ("trainer.accelerator",): "gpu cuda use_cuda no_cuda device",
    ("trainer.devices",): "world_size nproc n_procs num_processes",
    ("trainer.precision",): "fp16 bf16 amp half",
    ("trainer.gradient_clip_val",): "clip grad_clip clip_grad max_grad_norm",
    ("trainer.check_val_every_n_epoch",): (
        "eval_every eval_freq eval_interval eval_gap test_every frequency_of_the_test"
    ),
    ("trainer.checkpoint_every",): "save_every save_freq save_interval checkpoint_freq",
    ("trainer.default_root_dir",): "out output outdir output_dir save_dir save_path log_dir logdir results_dir",
    ("trainer.logger",): "wandb tensorboard use_wandb",
    ("ckpt_path",): "resume resume_from resume_from_checkpoint ckpt checkpoint load",
    ("config",): "cfg conf config_file config_path config_name",
    ("explain",): "dry_run",
}
"""Names in other programs, in lower case with underscores, by our options."""

OTHER_NAMES = {name: ours for ours, names in _MEANT.items() for name in names.split()}
"""Our options, one or several, by the name in other programs."""


def meant(option: str, dashes: str = "--") -> str:
    """Return a hint at our option for a name of another program; empty if the name is not known.

    Args:
        option: the name as it was typed, without leading dashes; case, dashes and underscores do not matter.
        dashes: prefix of the options in the hint.

    Examples:
        >>> meant("batch-size"), meant("zzz")
        ("; did you mean '--model.batch_size'?", '')
        >>> meant("epochs")
        "; did you mean '--model.local_epochs' or '--trainer.max_rounds'?"
        >>> meant("model.epochs")  # of several, those of the section
        "; did you mean '--model.local_epochs'?"
    """
    section, _, name = option.rpartition(".")
    options = OTHER_NAMES.get(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"), ())
    if option in options:  # the name is right, but the chosen class does not have the option
        return ""
    inside = tuple(ours for ours in options if section and ours.startswith(f"{section}."))
    listed = " or ".join(f"'{dashes}{ours}'" for ours in inside or options)
    return f"; did you mean {listed}?" if listed else ""
