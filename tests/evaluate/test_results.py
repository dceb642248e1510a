"""Results: resumable, refusing to mix, exact."""

import json

import pytest
import torch

from infsa.evaluate.results import Results, fingerprint, numbers
from tests.models.helpers import small


def test_records_come_back(tmp_path):
    path = tmp_path / "deep" / "a.jsonl"
    Results(path, {"fill": "mean", "levels": 20}).add({"index": 1, "name": "x"}, {"index": 5, "name": "y"})
    again = Results(path, {"levels": 20, "fill": "mean"})
    assert again.done == {1, 5}
    assert again.names == {"x", "y"}
    assert again.header["made_with"]["torch"] == torch.__version__


def test_a_cut_line_is_dropped_and_the_file_goes_on(tmp_path):
    path = tmp_path / "a.jsonl"
    Results(path, {}).add({"index": 0, "name": "x"})
    with open(path, "a") as file:
        file.write('{"index": 1, "na')
    again = Results(path, {})
    assert again.done == {0}
    again.add({"index": 2, "name": "z"})
    assert [json.loads(line).get("index") for line in path.read_text().splitlines()] == [None, 0, 2]


def test_an_interrupted_header_starts_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"config": {')
    assert Results(path, {"fill": "mean"}).done == set()


def test_another_configuration_is_refused(tmp_path):
    Results(tmp_path / "a.jsonl", {"fill": "mean"})
    with pytest.raises(ValueError, match="made with fill='mean', got 'black'"):
        Results(tmp_path / "a.jsonl", {"fill": "black"})


def test_numbers_round_trip():
    x = torch.rand(1000) * 10.0 ** torch.randint(-8, 3, (1000,))
    assert torch.equal(torch.tensor(json.loads(json.dumps(numbers(x)))), x)


def test_fingerprint_follows_the_weights():
    model = small()
    before = fingerprint(model)
    assert fingerprint(small()) == before
    with torch.no_grad():
        model.head.bias[0] += 1e-6
    assert fingerprint(model) != before
