"""The examples in the documentation of evaluation and of the page run and show what they say."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import torch

import infsa
import infsa.app

ELSEWHERE = {"infsa.evaluate.accuracy", "infsa.app.page"}  # need a run's data, or gradio
MODULES = {
    f"{package.__name__}.{module.name}"
    for package in (infsa.evaluate, infsa.app)
    for module in pkgutil.iter_modules(package.__path__)
}


@pytest.mark.parametrize("name", sorted(MODULES - ELSEWHERE))
def test_examples_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"infsa": infsa, "np": np, "torch": torch}).failed == 0
