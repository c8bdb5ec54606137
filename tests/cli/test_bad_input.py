"""A user's mistake is answered by one sentence, never by a traceback, and nothing is left behind."""

# ruff: noqa: E501  # the table below quotes whole sentences

import inspect
import textwrap

import pytest
import torch
from commands import SMALL

from dfl_lightning import UserError, objectives
from dfl_lightning import callbacks as cb
from dfl_lightning.cli import command as cli
from dfl_lightning.utils.storage.shipped_files import shipped

MINIMAL = "data: Digits\nmodel: {network: MLP}\n"

FILES = {
    "own_nets.py": """
        from torch import nn
        from dfl_lightning.callbacks import Uniform

        class FewClasses(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

            def forward(self, x):
                return self.layers(x)

        class OtherShape(FewClasses):
            def __init__(self):
                super().__init__()
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(50, 10))

        class Picky(FewClasses):
            def __init__(self, width: int = 3):
                super().__init__()
                raise ValueError(f"width {width} is not even")

        class Failing(Uniform):
            def on_weigh(self, round):
                {}["nothing"]

        def unsaid(scores, labels):
            return scores.sum()

        something = 3
        """,
    "own_broken.py": "import no_such_package_at_all\n",
    "own_syntax.py": "def broken(:\n",
    "ring9.yaml": "generator: cycle_graph\nargs: {n: 9}\n",
    "spelt.yaml": "generator: cycle_grap\n",
    "key.yaml": "generatr: cycle_graph\n",
    "torn.yaml": "generator: [cycle_graph\n",
    "links.yaml": "generator: complete\nlink_share: 80\n",
    "turns.yaml": "sequence: [{generator: complete}, {generator: cycle_graph}]\n",
    "torn.graphml": "<graphml><graph>",
    "alone.edgelist": "0 1\n1 2\n2 3\n3 4\n5\n",
    "five.edgelist": "0 1\n1 2\n2 3\n3 4\n",
    "list.yaml": "- data\n- model\n",
    "empty.yaml": "# nothing yet\n",
    "unclosed.yaml": "data: Digits\nmodel: {network: MLP\nselection: Gossip\n",
    "tab.yaml": "data: Digits\nmodel:\n\tnetwork: MLP\n",
    "unknown_key.yaml": MINIMAL + "selektion: Gossip\n",
    "unknown_trainer.yaml": MINIMAL + "trainer: {max_round: 3}\n",
    "unknown_model.yaml": "data: Digits\nmodel: {network: MLP, batchsize: 3}\n",
    "unknown_option.yaml": MINIMAL + "selection: {class_path: Gossip, init_args: {kk: 3}}\n",
    "flat.yaml": MINIMAL + "selection: {k: 3}\n",
    "number.yaml": MINIMAL + "selection: 3\n",
    "scalar_section.yaml": "data: Digits\nmodel: MLP\n",
    "null.yaml": "data: Digits\nmodel: {network: MLP, batch_size: null}\n",
    "no_data.yaml": "model: {network: MLP}\n",
    "neither.yaml": "seed_everything: 3\n",
    "fast.yaml": "data: Digits\nmodel: {network: MLP, optimizer: {class_path: SGD, init_args: {lr: fast}}}\n",
    "alphas.yaml": MINIMAL.replace(
        "Digits", "{class_path: Digits, init_args: {partition: {class_path: Dirichlet, init_args: {alpha: [1, 2]}}}}"
    ),
    "deep.yaml": MINIMAL + "selection: {class_path: Gossip, init_args: {k: {a: 1}}}\n",
    "mapped.yaml": MINIMAL + "trainer: {callbacks: [EarlyStopping: {monitor: val_loss}]}\n",
    "latin.yaml": "# caf\udce9\n",
    "nothing.yaml": MINIMAL + "topology:\n",
    "no_checkpoint.ckpt": "this is text",
    "trace.txt": "1 1 1\n",
}


def those(words, base):
    """List the public classes of a family in one sentence."""
    public = {name: getattr(room, name) for room in (cb, objectives) for name in room.__all__}
    classes = {name: found for name, found in public.items() if inspect.isclass(found) and issubclass(found, base)}
    own = [name for name, found in classes.items() if not inspect.isabstract(found)]
    return f"{words} are: {', '.join(sorted(set(own) - {base.__name__}))}"


SELECTIONS = those("selections", cb.Selection)
SHIPPED_TOPOLOGIES = f"(shipped: {', '.join(sorted(shipped('topologies')))})"

# what is typed after a small AFIND+ run's words, and parts of the one sentence that answers
REFUSED = {
    # names
    "--aggregation FriendAccuracy": f"aggregation 'FriendAccuracy' is a monitor; {those('aggregations', cb.Aggregation)}",
    "--data.partition Digits": "data.partition 'Digits' is a data set; partitions are: ByWriter,",
    "--model.network dfl_lightning.callbacks.AFIND": "is a selection; networks are: ",
    "--selection Gosip": f"selection: there is no 'Gosip'; did you mean 'Gossip'? ({SELECTIONS}; or your own by its import path)",
    "--aggregation Gossip": f"aggregation 'Gossip' is a selection; {those('aggregations', cb.Aggregation)}",
    "--selection Uniform": f"selection 'Uniform' is an aggregation; {SELECTIONS}",
    "--selection MLP": f"selection 'MLP' is a network; {SELECTIONS}",
    "--data MLP": "data 'MLP' is a network; data sets are: CIFAR10,",
    "--data.partition Dirchlet": "data.partition: there is no 'Dirchlet'; did you mean 'Dirichlet'? (partitions are: ByWriter, ClassCounts, Dirichlet,",
    "--model.network MPL": "model.network: there is no 'MPL'; did you mean 'MLP'?",
    "--model.optimizer Sgd": "model.optimizer: there is no 'Sgd'; did you mean 'SGD'? (optimizers are: SGD, Adam, AdamW,",
    "--model.lr_scheduler StepLr": "model.lr_scheduler: there is no 'StepLr'; did you mean 'StepLR'?",
    "--objective Plane": f"objective: there is no 'Plane'; did you mean 'Plain'? ({those('objectives', objectives.Objective)};",
    "--objective Fedprox": "objective: there is no 'Fedprox'; did you mean 'FedProx'?",
    "--objective FedProx --objective.mu -1": "objective.mu=-1.0; the weight of the proximal term must be 0 or more",
    "--objective FedProx --objective.nu 1": "objective FedProx has no option 'nu' (its options: mu, personal_epochs)",
    "--monitors [Nothing]": f"monitors: there is no 'Nothing' ({those('monitors', cb.Monitor)};",
    "--monitors [Uniform]": "monitors 'Uniform' is an aggregation; monitors are:",
    "--selection.help AFINDD": "selection: there is no 'AFINDD'; did you mean 'AFIND'?",
    "--trainer.callbacks+=EarlyStoppin": "trainer.callbacks: there is no 'EarlyStoppin'; did you mean 'EarlyStopping'? (callbacks are: ",
    "--trainer.logger CSVLoger": "trainer.logger: there is no 'CSVLoger'; did you mean 'CSVLogger'? (loggers are: ",
    # import paths
    "--selection nowhere_at_all.Thing": "selection 'nowhere_at_all.Thing': no module named 'nowhere_at_all'; run from its folder, put it next to the config, or install it",
    "--selection dfl_lightning.callbacks.Nope": "the module dfl_lightning.callbacks has no 'Nope'",
    "--selection torch.nn.Linear": "selection 'torch.nn.Linear' is not a subclass of dfl_lightning.callbacks.Selection",
    "--selection dfl_lightning.callbacks.Uniform": f"is an aggregation; {SELECTIONS}",
    "--selection own_nets.something": "selection 'own_nets.something' is not a class",
    "--model.network own_broken.Net": "model.network 'own_broken.Net': no module named 'no_such_package_at_all'",
    "--model.network own_syntax.Net": "model.network 'own_syntax.Net': importing own_syntax failed with SyntaxError",
    "--model.network own_nets.Picky": "width 3 is not even",
    # options
    "--selection.kk 3": "selection AFIND has no option 'kk'; did you mean 'k'? (its options: nu, k, rule, choose, proxy, similarity, center, proxy_layer, proxy_noise, proxy_clip)",
    "--selection.nu abc": "selection.nu=abc: expected a number",
    "--selection.nu -1": "selection.nu=-1.0; the temperature must be above 0",
    "--selection.rule letter": "selection.rule=letter: expected one of 'ratio', 'literal'",
    "--dropout.rate .3": "--dropout.rate: no dropout is chosen; name one with --dropout (Bernoulli, ExactCount, GroupedCount, Markov, Trace)",
    "--dropout Markof": "dropout: there is no 'Markof'; did you mean 'Markov'?",
    "--dropout Markov --dropout.rate .9": "lower it to 0.8333 or raise dropout.outage to 9",
    "--dropout Markov --dropout.rate [.5,2]": "dropout.rate=2.0; it is a share of clients between 0 and 1",
    "--dropout Bernoulli --dropout.rate [.5,.2,.1]": "dropout.rate lists 3 rates, but data has 6 clients; give one a client, or one number for all",
    "--dropout Bernoulli --dropout.rate x": "dropout.rate=x: expected a number or a list of numbers",
    "--dropout ExactCount --dropout.rate [.5,.2]": "dropout.rate=[.5,.2]: expected a number",
    "--dropout Bernoulli --dropout.rate 3": "dropout.rate=3.0; it is a share of clients between 0 and 1",
    "--dropout Trace": "dropout.file is missing; give it in a config or as --dropout.file",
    "--data.num_clients x": "data.num_clients=x: expected a whole number",
    "--data.num_clients 0": "data.num_clients must be at least 1, not 0",
    "--data.val_fraction 1.5": "data.val_fraction must be at least 0 and less than 1, not 1.5",
    "--data.partition.alpha 3": "data.partition RotatedClusters has no option 'alpha' (its options: degrees, per_class)",
    "--data.partition Dirichlet --data.partition.alpha -1": "data.partition Dirichlet: alpha must be a positive number, not -1.0",
    "--data.num_clients null": "data.num_clients is null; leave it out, or give it a value",
    "--config null.yaml": "null.yaml: model.batch_size is null; leave it out, or give it a value",
    "--model.network.hidden 8": "model.network.hidden=8: expected a list of whole numbers; write [8]",
    "--model.network.hidden [a]": "model.network.hidden=[a]: expected a list of whole numbers",
    "--model.optimizer.lr x": "model.optimizer.lr=x: expected a number",
    "--model.optimizer.lr -1": "model.optimizer cannot be made for the parameters of MLP (Invalid learning rate: -1.0)",
    "--model.optimizer.lrr 3": "model.optimizer SGD has no option 'lrr'; did you mean 'lr'?",
    "--model.local_epochs -1": "model.local_epochs=-1; it must be 0 or more",
    "--model.on_divergence explode": "model.on_divergence=explode: expected one of 'quarantine', 'stop'",
    "--model.lr_scheduler StepLR": "model.lr_scheduler.step_size is missing; give it in a config or as --model.lr_scheduler.step_size",
    "--model.lr_scheduler torch.optim.lr_scheduler.ReduceLROnPlateau": "ReduceLROnPlateau",
    "--model.metrics+=torchmetrics.classification.MulticlassF1Score": "model.metrics.num_classes is missing",
    "--trainer.max_roundz 3": "unknown option --trainer.max_roundz; did you mean '--trainer.max_rounds'?",
    "--selektion AFIND": "unknown option --selektion; did you mean '--selection'?",
    "--seed_everything x": "seed_everything=x: expected true or false or a whole number",
    "--seed_everything=": "seed_everything=: expected true or false or a whole number",
    "--selection=": "selection: there is no '' (selections are: AFIND,",
    "--engine null": "engine=null: expected one of 'auto', 'stacked', 'loop'",
    "--trainer.max_round 3": "unknown option --trainer.max_round; did you mean '--trainer.max_rounds'?",
    "--selection.k": "--selection.k needs a value",
    "--model.optimizer null": "model.optimizer is null; leave it out, or give it a value",
    "--seed_everything -1": "seed_everything=-1; it is a whole number from 0 to 4294967295",
    "stray": "unexpected argument 'stray'; options begin with --",
    "--ckpt_path": "--ckpt_path needs a value",
    "--selection 3": "selection takes a class, {class_path: NAME, init_args: {…}}, not 3",
    # configs
    "--config": "--config needs a file or the name of a shipped config; --list names them",
    "--config --explain": "--config needs a file",
    "--config afnd": "afnd: no such file, and none of that name among the shipped configs; did you mean 'afind'? (shipped: adf_lora, adpsgd, afind,",
    "--config list.yaml": "list.yaml: a config is a mapping of keys such as data, model, selection; this is a list",
    "--config empty.yaml": "empty.yaml: it is empty; a config names at least data and model",
    "--config unclosed.yaml": "unclosed.yaml, line 3: not readable YAML",
    "--config tab.yaml": "tab.yaml, line 3: not readable YAML",
    "--config unknown_key.yaml": "unknown_key.yaml: unknown key 'selektion'; did you mean 'selection'? (keys: seed_everything, trainer,",
    "--config unknown_trainer.yaml": "unknown_trainer.yaml: trainer has no option 'max_round'; did you mean 'max_rounds'?",
    "--config unknown_model.yaml": "unknown_model.yaml: model has no option 'batchsize'; did you mean 'batch_size'?",
    "--config unknown_option.yaml": "unknown_option.yaml: selection Gossip has no option 'kk'; did you mean 'k'?",
    "--config flat.yaml": "flat.yaml: selection takes a class, {class_path: NAME, init_args: {…}}, not {'k': 3}",
    "--config number.yaml": "number.yaml: selection takes a class",
    "--config scalar_section.yaml": "scalar_section.yaml: model takes options such as network, not 'MLP'",
    # links between clients
    "--topology nowhere": f"nowhere: no such file, and none of that name among the shipped topologies {SHIPPED_TOPOLOGIES}",
    "--topology two_clusters --topology.link_share 0.5": "--topology.link_share: topology two_clusters names no generator",
    "--topology ring --topology.link_share 80": "topology: link_share must be above 0 and at most 1, not 80.",
    "--topology el_local --topology.args.t 4": "topology: el_local has no argument 't' (it takes s).",
    "--topology rng": "did you mean 'ring'?",
    "--topology ring9.yaml": "ring9.yaml: 9 nodes, but data has 6 clients; give a graph with 6 nodes; or set data.num_clients=9, with which these data work.",
    "--topology five.edgelist": "five.edgelist: 5 nodes, but data has 6 clients",
    "--topology spelt.yaml": "spelt.yaml: unknown generator 'cycle_grap'; did you mean 'cycle_graph'?",
    "--topology links.yaml": "links.yaml: link_share must be above 0 and at most 1, not 80.",
    "--topology turns.yaml": "turns.yaml: item 1 of the sequence needs rounds, the number of rounds it holds.",
    "--topology key.yaml": "key.yaml: unknown key 'generatr'; did you mean 'generator'?",
    "--topology torn.yaml": "torn.yaml: not YAML",
    "--topology torn.graphml": "torn.graphml: not a .graphml graph",
    "--topology server": "selection AFIND is for clients with neighbours, and a server has none; use a topology without servers, "
    "or --selection Gossip",
    # data
    "--data.num_clients 5000": "data: 5000 clients, but Digits has 1797 training samples; lower num_clients",
    "--data.num_clients 3": "data.partition RotatedClusters{0,90,180,270}: 4 clusters, but only 3 clients",
    "--data.samples_per_client 1": "data: client 0 has no test sample",
    "--data.split nowhere.npz": "data.split: nowhere.npz does not exist; give the split.npz of a run, or null",
    "--data FromDataset": "data.dataset is missing; give it in a config or as --data.dataset",
    "--data MNIST --data.root nowhere --data.download false": "data MNIST: its files are not in root 'nowhere'",
    # policies
    "--aggregation null": "no aggregation: a round needs exactly one; name it with --aggregation",
    "--selection null": "no selection: a round needs exactly one; name it with --selection",
    "--trainer.callbacks+=Uniform": "2 policies of the family aggregation (Uniform, Boltzmann); keep one",
    "--threshold.rule literal": "threshold.rule=literal but selection.rule=ratio; they must be the same",
    "--aggregation FromTopology": "aggregation FromTopology needs a 'weight' attribute",
    "--dropout Trace --dropout.file trace.txt": "trace.txt",
    "--selection Gossip --selection.within cluster --data.partition IID": "selection.within=cluster needs known clusters",
    # the network
    "--model.network own_nets.FewClasses": "model.network FewClasses returns (7,) for an input, but the data has 10 classes",
    "--model.network own_nets.OtherShape": "model.network OtherShape does not take inputs of shape (1, 8, 8) as the data has them",
    "--model.network PENSCNN": "PENSCNN: needs images (channels x height x width) of at least 1x22x22, but the data has 1x8x8",
    "--model.network ResNet18 --model.network.groups 5": "ResNet18: groups must divide 64, the fewest channels, but is 5",
    "--model.network ResNet18 --model.network.norm layer": "model.network.norm=layer: expected one of 'group', 'batch'",
    "--model.network LeNet": "LeNet: needs images (channels x height x width) of at least 1x16x16, but the data has 1x8x8",
    "--model.shared [nothing*]": "model.shared: no parameter of MLP matches 'nothing*' (its parameters: features.fc1.weight,",
    "--model.shared [head.*]": "selection AFIND compares the layer 'features.fc1', which model.shared keeps private",
    "--model.init nowhere.pt": "model.init=nowhere.pt: no such file",
    "--selection.proxy_layer nowhere": "the network has no layer 'nowhere' with parameters (layers: features.fc1, head)",
    # what has no meaning for rounds
    "--model.optimizer LBFGS": "model.optimizer LBFGS cannot take a step from the gradients of a batch alone",
    "--model.optimizer Muon": "model.optimizer cannot be made for the parameters of MLP (Muon only supports 2D parameters",
    "--engine stacked --model.optimizer Adafactor": "engine=stacked: MLP cannot be stacked: optimizer Adafactor is not "
    "elementwise",
    "--model.lr_scheduler StepLR --model.lr_scheduler.step_size 0": "model.lr_scheduler StepLR gives no learning rate for "
    "round 2 (integer",
    "--model.lr_scheduler OneCycleLR --model.lr_scheduler.max_lr 1": "model.lr_scheduler cannot be made (You must define "
    "either total_steps OR",
    "--trainer.precision 16-mixed": "trainer.precision=16-mixed is not implemented; use 32, tf32, 64-true or bf16-mixed",
    "--trainer.accumulate_grad_batches 2": "trainer.accumulate_grad_batches=2 has no meaning for communication rounds; use a larger model.batch_size",
    "--trainer.limit_train_batches 0.5": "trainer.limit_train_batches=0.5 has no meaning for communication rounds; use model.local_epochs",
    "--trainer.max_steps 10": "trainer.max_steps=10 has no meaning for communication rounds; use max_rounds",
    "--trainer.strategy fsdp": "trainer.strategy=fsdp would synchronise clients; use clients (or auto, or ddp: all mean the same)",
    "--trainer.strategy nothing": "trainer.strategy=nothing: there is no such strategy; use clients (or auto, or ddp: all mean the same)",
    "--trainer.devices 9 --explain": "trainer.devices: 9 processes for 2 cohorts of clients, which are not divided; "
    "use 2 processes at most, or --trainer.cohorts 9",
    "--trainer.accelerator abacus": "trainer.accelerator=abacus: there is no such accelerator; it is auto, cpu or gpu",
    "--trainer.accelerator cpu --trainer.cuda_graphs true": "trainer.cuda_graphs=true needs a GPU with CUDA, and this run is on cpu; leave it out",
    "--trainer.cuda_graphs sometimes": "trainer.cuda_graphs=sometimes: expected true or false or 'auto'",
    "--trainer.max_rounds x": "trainer.max_rounds=x: expected a whole number",
    "--trainer.max_rounds -3": "trainer.max_rounds=-3; it is a number of rounds, 0 or more (-1: without end)",
    "--trainer.checkpoint_every 0": "trainer.checkpoint_every=0; it is a number of rounds, 1 or more",
    "--trainer.gradient_clip_val -1": "trainer.gradient_clip_val=-1.0; it must be above 0",
    "--trainer.max_time soon": "soon is not a duration; trainer.max_time, and the duration of a Timer, are DD:HH:MM:SS",
    # callbacks that could not see what they look at
    "--trainer.callbacks+=EarlyStopping": "trainer.callbacks.monitor is missing; give it in a config or as --trainer.callbacks.monitor",
    "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr x": "trainer.callbacks EarlyStopping has no option 'monitr'; did you mean 'monitor'? (its options: monitor,",
    "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor test_acc": "would choose by test data; monitor val_* or a training column",
    "--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor val_loss": "trainer.callbacks EarlyStopping monitors val_loss, "
    "but no client has validation data; set data.val_fraction",
    "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitor val_acc": "trainer.callbacks ModelCheckpoint monitors val_acc, "
    "but no client has validation data; set data.val_fraction",
    "--trainer.callbacks+=LearningRateMonitor": "trainer.callbacks LearningRateMonitor needs a logger",
    "--trainer.logger CSVLogger": "trainer.logger.save_dir is missing; give it in a config or as --trainer.logger.save_dir",
    # what was expected, and the value
    "--config fast.yaml": "model.optimizer.lr: expected a number, not fast",
    "--config alphas.yaml": "data.partition.alpha: expected a number, not [1, 2]",
    "--config deep.yaml": "selection.k: expected a whole number or 'all', not {'a': 1}",
    "--model.optimizer.momentum true": "model.optimizer.momentum=true: expected a number",
    "--model.optimizer Adam --model.optimizer.betas [0.9]": "model.optimizer.betas=[0.9]: expected a list of 2 values",
    "--model.optimizer Adam --model.optimizer.betas [0.9,2]": "model.optimizer cannot be made for the parameters of MLP (Invalid beta parameter at index 1: 2.0)",
    "--model.network.hidden.0 8": "model.network.hidden: expected a list of whole numbers, not {'0': '8'}",
    "--model.shared head": "model.shared=head: expected a list of texts; write [head]",
    "--model.metrics Accuracy": "model.metrics=Accuracy: expected a list; write [Accuracy]",
    "--model.metrics+=Acuracy": "model.metrics: there is no 'Acuracy'; did you mean 'Accuracy'? (metrics are: auroc, average_precision, f1_macro,",
    "--model.metrics+=MulticlassRecall": "MulticlassRecall: Argument `num_classes` can only be `None` for",
    "--model.loss crossentropy": "model.loss: there is no 'crossentropy'; did you mean 'CrossEntropyLoss'? (losses are: ",
    "--model.loss torch.nn.functional.cross_entropi": "has no 'cross_entropi'; did you mean 'cross_entropy'?",
    "--model.loss own_nets.unsaid": "is a function that does not say that it returns a torch.Tensor; annotate it with '-> torch.Tensor'",
    "--model.network own_nets.unsaid": "does not say that it returns a torch.nn.Module; annotate it with '-> torch.nn.Module'",
    "--model.lr_scheduler LambdaLR --model.lr_scheduler.lr_lambda 3": "lr_lambda=3: expected a function or a list",
    "--trainer.callbacks+=torch.nn.Linear": "trainer.callbacks 'torch.nn.Linear' is not a subclass of lightning.pytorch.Callback",
    "--trainer.callbacks.patience 3": "no trainer.callbacks is chosen; name one with --trainer.callbacks+=NAME (BackboneFinetuning,",
    "--config mapped.yaml": "mapped.yaml: trainer.callbacks takes a class, {class_path: NAME, init_args: {…}}, not {'EarlyStopping'",
    "--data FromDataset --data.dataset nowhere_at_all.It": "data.dataset 'nowhere_at_all.It': no module named 'nowhere_at_all'; run from",
    "--data FromDataset --data.dataset torchvision.datasets.FakeDat": "has no 'FakeDat'; did you mean 'FakeData'?",
    "--data FromDataset --data.dataset torch.nn.Linear": "data.dataset=torch.nn.Linear: expected a subclass of Dataset",
    "--model.batch_size many": "model.batch_size=many: expected a whole number or 'full'",
    "--model.batch_size 0": "model.batch_size=0; it must be 1 or more",
    "--trainer.devices x": "trainer.devices: it is a number of processes, 1 or more",
    "--trainer.devices 0": "trainer.devices: it is a number of processes, 1 or more",
    "--trainer.num_nodes 0": "trainer.num_nodes=0; it is a number of machines, 1 or more",
    "--trainer.num_nodes 2": "trainer.num_nodes=2: the processes of several machines are started by torchrun or SLURM",
    "--trainer.accelerator tpu": "trainer.accelerator: there is no such device that this can use here; it is auto, cpu or gpu",
    "--trainer.profiler simpel": "trainer.profiler: there is no such profiler; it is one of 'simple', 'advanced',",
    "--trainer.logger MLFlowLogger": "MLFlowLogger needs a package that is not installed; run: pip install -U 'mlflow",
    "--help_all=true": "--help_all takes no value; write --help_all",
    "--print_config=all": "--print_config=all: expected skip_default or skip_unset, or no value",
    "--explain=true": "--explain takes no value; write --explain",
    "--selection+=Gossip": "--selection+: selection does not take a list; write --selection",
    "--foo.help": "there is no page --foo.help (pages: clock, dropout, outgoing, selection,",
    "--ckpt_path=": "--ckpt_path needs a value, a run folder or a checkpoint",
    "--trainer.callbacks+=DeviceStatsMonitor --trainer.logger true": "trainer.callbacks DeviceStatsMonitor needs a "
    "logger that is named, for example --trainer.logger CSVLogger --trainer.logger.save_dir logs",
    "--config latin.yaml": "latin.yaml: not readable YAML (it is not UTF-8 text; save it as UTF-8)",
    "--config nothing.yaml": "topology=None: a path, a name, a mapping, a networkx graph or a matrix is needed; leave it out for complete",
    "--topology=": "'': no such file, and none of that name among the shipped topologies",
    "--dropout Trace --dropout.file nowhere.txt": "the dropout trace cannot be read (No such file or directory)",
    # checkpoints
    "--ckpt_path nowhere.ckpt": "nowhere.ckpt: no such checkpoint",
    "--ckpt_path no_checkpoint.ckpt": "no_checkpoint.ckpt: not a whole checkpoint",
}


@pytest.fixture
def here(here):
    """Make a working folder with the files above."""
    for name, text in FILES.items():
        (here / name).write_text(textwrap.dedent(text), errors="surrogateescape")
    return here


def left_behind(folder):
    """List new files and run folders; an empty `runs` does not count."""
    found = {path.relative_to(folder) for path in folder.rglob("*")}
    return {str(path) for path in found if str(path) not in {*FILES, "runs"} and "__pycache__" not in path.parts}


def refusal(words, capsys, command="fit", small=True):
    code = cli.run(command, [*(SMALL if small else []), *words])
    out, err = capsys.readouterr()
    assert code == 2, err
    assert "Traceback" not in out + err
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith(f"dfl-{command}: ")
    return lines[0].removeprefix(f"dfl-{command}: ")


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_is_answered_by_one_sentence(here, capsys, words):
    sentence = refusal(words.split(), capsys)
    assert REFUSED[words] in sentence
    assert left_behind(here) == set()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("", "model.network and data are missing; give a config or --model.network and --data"),
        ("--config no_data.yaml", "data is missing; give a config or --data"),
        ("--config neither.yaml", "model.network and data are missing"),
        ("--data Digits", "model.network is missing; give a config or --model.network"),
        (
            "--model.network.hidden [3]",
            "no model.network is chosen; name one with --model.network (CNN4, CharLSTM, CharTransformer, FEMNISTCNN, HuggingFace, LeNet, LoRA, MLP, MNISTCNN, PENSCNN, ResNet18, TCN, Tabular)",
        ),
    ],
)
def test_what_a_run_needs_is_asked_for(here, capsys, words, answer):
    assert answer in refusal(words.split(), capsys, small=False)
    assert left_behind(here) == set()


@pytest.mark.parametrize("command", ["validate", "test"])
def test_an_evaluation_needs_a_checkpoint(here, capsys, command):
    assert refusal([], capsys, command) == (f"no run is named; give its folder: dfl-{command} RUN")


def test_monitor_of_an_unlogged_number_lists_the_logged_ones(here, capsys):
    sentence = refusal(["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor", "nonsense"], capsys)
    assert sentence.startswith("EarlyStopping monitors nonsense, which this run does not log; it logs ")
    assert "`train_loss`" in sentence


def test_an_unwritable_run_folder_is_refused_before_training(here, capsys):
    (here / "taken").write_text("a file where a folder should go")
    sentence = refusal(["--trainer.default_root_dir", "taken/deeper"], capsys)
    assert sentence.startswith("taken/deeper/afind/")
    assert "the run folder cannot be made" in sentence
    assert sentence.endswith("set trainer.default_root_dir")


def test_clients_without_links_are_named_and_train_alone(here, capsys):
    code = cli.run("fit", [*SMALL, "--topology", "alone.edgelist"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "note: alone graph: client 5 has no neighbours and trains alone." in out


@pytest.mark.filterwarnings("default")
def test_diverging_run_warns_in_one_line_and_continues(here, capsys):
    code = cli.run("fit", [*SMALL, "--model.optimizer.lr", "1e30"])
    assert code == 0
    assert capsys.readouterr().err.splitlines() == [
        "dfl-fit: warning: round 1: training of client 0, 1, 2, 3, 4, 5 diverged; excluded from this round "
        "(warned once per client; diverged.npz has every round)"
    ]


def test_error_of_a_users_class_is_reported_with_line(here, capsys):
    sentence = refusal(["--aggregation", "own_nets.Failing"], capsys)
    assert sentence.startswith("own_nets.py, line ")
    assert sentence.endswith(", in on_weigh: KeyError: 'nothing' (DFL_DEBUG=1 shows the way there)")


def test_debug_shows_where(here, monkeypatch):
    monkeypatch.setenv("DFL_DEBUG", "1")
    with pytest.raises(UserError, match="no such file"):
        cli.run("fit", ["--config", "nowhere"])


def test_a_command_line_leaves_nothing_behind_for_the_next_one(here, capsys):
    def explained():
        assert cli.run("fit", [*SMALL, "--explain"]) == 0
        return capsys.readouterr().out

    before = explained()
    assert "expected skip_default or skip_unset, or no value" in refusal(["--print_config=nonsense"], capsys)
    refusal(["--model.batch_size", "x"], capsys)
    assert cli.run("fit", [*SMALL, "--selection", "Gossip", "--selection.k", "2", "--print_config"]) == 0
    assert cli.run("fit", [*SMALL, "--selection", "Gossip", "--selection.k", "2", "--explain"]) == 0
    assert "Gossip" in capsys.readouterr().out
    assert explained() == before


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("8 GB asked for"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
)
def test_out_of_memory_says_what_to_lower(here, capsys, monkeypatch, error):
    def full(*args):
        raise error

    monkeypatch.setattr(cli, "explain", full)
    sentence = refusal(["--explain"], capsys)
    assert sentence.startswith("out of memory (")
    assert sentence.endswith("; lower data.num_clients, model.batch_size or the network")
