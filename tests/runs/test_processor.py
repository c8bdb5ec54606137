"""Run folders, pages and tables name the kind of processor."""

import json
import platform

import torch

from dfl_lightning.runs.processor import in_words, processor

ONE = {"machine": "x86_64", "capability": "AVX2", "kernels": ["MKL"], "threads": 1}


def test_a_summary_names_what_it_was_computed_on(small_run):
    run = small_run(1).fit()
    found = json.loads((run.folder / "summary.json").read_text())["processor"]
    assert found == processor()
    assert found["machine"] == platform.machine()
    assert found["capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["threads"] == torch.get_num_threads()


def test_processors_that_differ_are_all_named():
    other = {**ONE, "capability": "AVX512", "kernels": [], "threads": 2}
    assert in_words([ONE, other, ONE]) == "x86_64 AVX2 with MKL, 1 thread; x86_64 AVX512, 2 threads"
    assert in_words([None, {}]) == ""
