"""The served page without a browser: sessions that do not see each other, errors in one line, no way out."""

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from infsa.app import examples
from infsa.app.handlers import MEAN, settings_of
from infsa.app.look import METHODS, explained
from infsa.app.model_cache import MECHANISMS
from infsa.app.pictures import read_picture
from infsa.cli.app import main

from .helpers import photograph, promise

GUESS = re.compile(r'<div class="guess"><span>(.*?)</span>.*?<span>(\d+%)</span>')
CONTROLS = {"layer": 6, "head": MEAN, "gamma": 0.7, "hops": "All", "side": "64 px, as trained"}


def connect(address):
    client = pytest.importorskip("gradio_client")
    return client.Client(address, verbose=False, analytics_enabled=False)


def ask(client, mechanism, method):
    shown = client.predict("Class token", method, mechanism, *CONTROLS.values(), api_name="/show")
    return GUESS.findall(shown[0] if isinstance(shown, (list, tuple)) else shown)


def expected(image, mechanism, method):
    controls = dict(CONTROLS)
    settings = settings_of(mechanism, controls.pop("layer"), controls.pop("head"), method, *controls.values())
    found = explained(image, settings).predictions[:3]
    return [(label.split(",")[0], f"{chance:.0%}") for label, chance in found]


def test_ten_visitors_at_once_get_their_own_answers(address):
    names, mechanisms, methods = list(examples()), list(MECHANISMS), list(METHODS)
    visits = [(names[i % len(names)], mechanisms[i % 3], methods[i % len(methods)]) for i in range(10)]
    clients = [connect(address) for _ in visits]

    def visit(number):
        name, mechanism, method = visits[number]
        clients[number].predict(name, api_name="/choose")
        return [ask(clients[number], mechanism, method) for _ in range(2)]

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(visit, range(10)))
    for (name, mechanism, method), answer in zip(visits, answers, strict=True):
        right = expected(read_picture(examples()[name]), mechanism, method)
        assert answer == [right, right]


def test_threads_share_models_without_mixing():
    pictures = [photograph(seed=seed) for seed in range(6)]
    settings = [
        settings_of(mechanism, 6, MEAN, method, 0.7, "All", "64 px, as trained")
        for mechanism in MECHANISMS
        for method in ("Gradient of the class", "Class token's row")
    ]
    jobs = list(zip(pictures, settings, strict=True)) * 2
    alone = [explained(*job) for job in jobs]
    with ThreadPoolExecutor(10) as pool:
        together = list(pool.map(lambda job: explained(*job), jobs))
    for one, other in zip(alone, together, strict=True):
        assert one.predictions == other.predictions
        assert (one.map == other.map).all()


@pytest.mark.parametrize("tab", ["picture", "gigapixel"])
def test_a_gigapixel_upload_is_refused_in_one_line(address, tmp_path, tab):
    client = connect(address)
    from gradio_client import handle_file

    huge = handle_file(promise(tmp_path / "huge.png", 32768, 32768))
    message = "more than the 67 megapixels" if tab == "picture" else "more than the 400 that this page accepts"
    with pytest.raises(Exception, match=message) as caught:
        client.predict(huge, api_name="/upload") if tab == "picture" else client.predict(None, huge, api_name="/stream")
    assert "\n" not in str(caught.value)


def test_files_of_the_machine_cannot_be_asked_for(address, tmp_path):
    httpx = pytest.importorskip("httpx")
    secret = tmp_path / "secret.png"
    photograph().save(secret)
    assert httpx.get(f"{address}gradio_api/file={secret}").status_code == 403
    named = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    for name, data in (("upload", [named]), ("stream", [None, named]), ("stream", [str(secret), None])):
        event = httpx.post(f"{address}gradio_api/call/{name}", json={"data": data}).json()["event_id"]
        assert httpx.get(f"{address}gradio_api/call/{name}/{event}").text.startswith("event: error")


def test_every_head_of_the_chosen_mechanism_can_be_read(address):
    client = connect(address)
    client.predict("Portrait", api_name="/choose")
    client.predict("Linear-InfSA", api_name="/heads")
    shown = client.predict("Class token", "TokenRank", "Linear-InfSA", 2, "12", 0.7, "All", "128 px", api_name="/show")
    assert "TokenRank, head 12" in shown[0]


def test_nothing_leaves_the_machine(monkeypatch):
    pytest.importorskip("gradio")
    from infsa.app.page import serve

    asked = []
    connect_socket = socket.socket.connect

    def note(self, target):
        asked.append(target)
        return connect_socket(self, target)

    monkeypatch.setattr(socket.socket, "connect", note)
    page, address = serve()
    page.close()
    assert address.startswith("http://127.0.0.1:")
    outside = [target for target in asked if isinstance(target, tuple) and target[0] not in ("127.0.0.1", "::1")]
    assert not outside


def test_the_command_refuses_in_one_line(monkeypatch, capsys):
    pytest.importorskip("gradio")
    for arguments, code, message in (
        (["--max-megapixels", "0"], 2, "must be more than 0"),
        (["--port", "0"], 2, "--port"),
        (["--file", "missing.tif"], 1, "missing.tif: no such file"),
    ):
        monkeypatch.setattr(sys, "argv", ["infsa", "app", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        error = capsys.readouterr().err
        assert stop.value.code == code
        assert message in error
        assert error.count("\n") == 1


def test_uploads_do_not_outlive_the_command(tmp_path):
    pytest.importorskip("gradio")
    from gradio_client import handle_file

    photograph().save(tmp_path / "mine.png")
    kept = tmp_path / "kept"
    command = [sys.executable, "-c", "from infsa.cli import main; main()", "app"]
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(kept)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            client = connect(re.search(r"http://\S+", server.stdout.readline())[0])
            client.predict(handle_file(tmp_path / "mine.png"), api_name="/upload")
            assert list(kept.rglob("mine.png"))
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=60)
        finally:
            server.kill()
    assert [path for path in kept.rglob("*") if path.is_file()] == []


def test_a_taken_port_is_named(monkeypatch, capsys):
    pytest.importorskip("gradio")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["infsa", "app", "--port", str(port)])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert f"port {port} cannot be used (address already in use): choose another --port" in error
    assert error.count("\n") == 1


def test_without_gradio_the_command_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr(sys, "argv", ["infsa", "app"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert "pip install '.[app]' in a checkout" in capsys.readouterr().err
