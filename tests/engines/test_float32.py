"""One precision for products and convolutions of float32 numbers, while a run lasts."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.utils.errors import UserError

SETTINGS = (
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.get_float32_matmul_precision()",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
    "torch.backends.mkldnn.matmul.fp32_precision",
)

USERS = (
    "pass",
    "torch.backends.cudnn.allow_tf32 = False",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "torch.set_float32_matmul_precision('medium')",
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
)

SCRIPT = """
import json, os, torch, traceback, warnings
warnings.simplefilter("error")
from dfl_lightning.engines.float32 import float32_arithmetic

def now():
    found = {}
    for setting in SETTINGS:
        try:
            found[setting] = eval(setting)
        except (AttributeError, RuntimeError) as error:  # an older torch; or one where old and new settings disagree
            found[setting] = type(error).__name__
    return found

def check(user):
    exec(user)
    before = now()
    for tf32 in (False, True):
        with float32_arithmetic(tf32):
            inside = now()
            with float32_arithmetic(not tf32), float32_arithmetic(not tf32):
                assert now()["torch.backends.cudnn.allow_tf32"] is not tf32
            assert now() == inside
            assert inside["torch.backends.cudnn.allow_tf32"] is tf32, inside
            assert inside["torch.backends.cuda.matmul.allow_tf32"] is tf32, inside
            for name, value in inside.items():
                if name.endswith("fp32_precision"):
                    on_gpu = "cudnn" in name or "cuda" in name
                    assert value in ("AttributeError", "tf32" if tf32 and on_gpu else "ieee"), inside
        assert now() == before, (before, now())

said = {}
for user in USERS:
    process = os.fork()  # settings last as long as the process does
    if not process:
        try:
            check(user)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    said[user] = os.waitpid(process, 0)[1]
print(json.dumps(said))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts a process for each setting by forking")
def test_both_settings_are_set_and_restored():
    known = hasattr(torch.backends, "fp32_precision")  # since torch 2.9
    users = [user for user in USERS if known or "fp32_precision" not in user]
    script = SCRIPT.replace("SETTINGS", repr(SETTINGS)).replace("USERS", repr(users))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(users, 0), done.stderr


class Watching(nn.Module):
    """A network that notes what is allowed while it computes."""

    seen: list[tuple[bool, bool]] = []

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        self.seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
        return self.layer(x.flatten(1))


@pytest.mark.parametrize(("precision", "expected"), [("32", False), ("tf32", True), ("bf16-mixed", False)])
def test_a_run_and_its_evaluations_have_the_given_precision(small_run, precision, expected, monkeypatch):
    monkeypatch.setattr(Watching, "seen", [])
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    run = small_run(
        rounds=1, precision=precision, engine="loop", policies=[], defaults=True, module={"network": Watching()}
    )
    verbs = (
        run.fit,
        run.module.evaluate,
        lambda: run.trainer.test(run.module, datamodule=run.data, verbose=False),
        lambda: run.trainer.validate(run.module, datamodule=run.data, verbose=False),
        lambda: run.trainer.prepare(run.module, run.data),
    )
    for verb in verbs:
        Watching.seen.clear()
        verb()
        assert set(Watching.seen) == {(expected, expected)}, verb
        assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def test_settings_come_back_when_a_run_fails(small_run):
    before = torch.backends.cudnn.allow_tf32
    with pytest.raises(UserError):
        small_run(rounds=1, module={"loss": lambda scores, labels: 7}).fit()
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.cpu_bits
def test_tf32_on_a_cpu_equals_32_with_a_note(small_run):
    runs = [small_run(rounds=1, precision=precision) for precision in ("32", "tf32")]
    for run in runs:
        run.fit()
    assert torch.equal(runs[0].rows, runs[1].rows)
    remark = "trainer.precision=tf32 is the same as 32 on a CPU, which has no TensorFloat32"
    assert [remark in run.trainer.remarks for run in runs] == [False, True]


@pytest.mark.gpu
def test_both_settings_have_the_given_precision_on_a_gpu():
    """The error is measured against float64; TensorFloat32 has 10 bits behind the point."""
    g = torch.Generator().manual_seed(0)
    images, kernels = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((8, 64, 16, 16), (64, 64, 3, 3)))
    a, b = torch.randn(2, 512, 512, generator=g, dtype=torch.float64)
    for tf32 in (False, True):
        with float32_arithmetic(tf32):
            product = (a.float().cuda() @ b.float().cuda()).cpu().double()
            image = nn.functional.conv2d(images.float().cuda(), kernels.float().cuda()).cpu().double()
        for found, expected in ((product, a @ b), (image, nn.functional.conv2d(images, kernels))):
            error = float((found - expected).abs().max() / expected.abs().max())
            assert error < (3e-3 if tf32 else 1e-5)
            if not tf32 or torch.cuda.get_device_capability()[0] >= 8:
                assert (error > 3e-5) is tf32
