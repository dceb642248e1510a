"""The page itself: controls in one column, results in the other, and what calls what. Everything else is plain code."""

import os
import socket
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import gradio as gr

from ..ops.checks import check_choice
from ..report.photographs import examples
from . import handlers as on
from .gigapixel import MAX_MEGAPIXELS, Scene, stream_scene
from .html import show_scene
from .look import METHODS
from .model_cache import MECHANISMS, add, borrow, names, sizes, streamed
from .pictures import LARGER, MAX_PIXELS, read_picture
from .tiles import route

UPLOAD_LIMIT = "2gb"
QUEUE = 64  # waiting requests; more are told to come back
HOUR = 3600
TABS = ("Map", "Token graph", "Removal")


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """A handler whose expected failures become one line on the page."""

    @wraps(function)
    def wrapped(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            raise gr.Error(on.one_line(error), title="Error", print_exception=False) from error

    return wrapped


def show(tab: str, image: Any, start: str, method: str, *controls: Any) -> tuple[Any, ...]:
    """What the open tab shows, and nothing for the others: the map, the graph, the curves of the removal."""
    if image is None:  # the first tab opens before the first picture is there
        return gr.skip(), gr.skip(), gr.skip()
    mechanism, layer, head, *rest = controls
    settings = on.settings_of(mechanism, layer, head, method, *rest)
    if tab == TABS[0]:
        return on.map_tab(image, settings, method), gr.skip(), gr.skip()
    if tab == TABS[1]:
        return gr.skip(), on.graph_tab(image, settings, start), gr.skip()
    return gr.skip(), gr.skip(), on.curves_of(image, settings)


def step(tab: str, curves: on.Curves | None, percent: float) -> Any:
    """The removal at the position that its slider has now, which may have moved while the curves were computed."""
    return on.removal_tab(curves, percent) if tab == TABS[2] else gr.skip()


def build(files: list[Path] | None = None, max_megapixels: float = MAX_MEGAPIXELS) -> gr.Blocks:
    """The page, not yet served."""
    for model in names():
        with borrow(model):
            pass  # loaded before the first visitor comes
    with gr.Blocks(title="infsa explorer", analytics_enabled=False, delete_cache=(HOUR, 24 * HOUR)) as page:
        gr.Markdown(
            "# Where does attention look?\nChoose a picture and a mechanism. The page shows the map, the token graph "
            "behind it, and how the prediction changes when patches are removed.",
            elem_id="title",
        )
        with gr.Tabs():
            with gr.Tab("Picture"):
                _picture_tab(page)
            with gr.Tab("Gigapixel"):
                _gigapixel_tab(on.named_files(files or []), max_megapixels)
    return page.queue(max_size=QUEUE)


def _picture_tab(page: gr.Blocks) -> None:
    samples = examples()
    pictures, models = list(samples), names()
    own = len(models) > len(MECHANISMS)
    first_model = models[0]
    picture, curves = gr.State(), gr.State()
    active = gr.State(TABS[0])
    with gr.Row():
        with gr.Column(elem_classes="controls"):
            example = gr.Radio(pictures, value=pictures[0], label="Example picture")
            upload = gr.File(
                label=f"Or your own, up to {MAX_PIXELS / 1e6:.0f} megapixels", height=72, elem_classes="drop"
            )
            mechanism = gr.Radio(models, value=first_model, label="Model" if own else "Mechanism")
            method = gr.Dropdown(list(METHODS), value=next(iter(METHODS)), label="Map")
            layers, heads = sizes(first_model)
            with gr.Row():
                layer = gr.Slider(1, layers, value=layers, step=1, label="Layer", min_width=130, buttons=[])
                head = gr.Dropdown(_heads(heads), value=on.MEAN, label="Head", min_width=130)
            with gr.Row():
                gamma = gr.Slider(0.1, 0.9, value=0.7, step=0.05, label="γ", min_width=130, buttons=[])
                hops = gr.Dropdown(list(on.HOPS), value="All", label="Hops", min_width=130)
            seen = list(on.sides(first_model))
            side = gr.Dropdown(seen, value=seen[0], label="What the model sees")
        with gr.Column(elem_classes="results"), gr.Tabs():
            with gr.Tab(TABS[0]) as first:
                map_html = gr.HTML(elem_id="map")
            with gr.Tab(TABS[1]) as second:
                start = gr.Radio(list(on.STARTS), value=on.STARTS[0], label="The walk starts at")
                graph_html = gr.HTML(elem_id="graph")
            with gr.Tab(TABS[2]) as third:
                percent = gr.Slider(
                    0, 100, value=0, step=5, label="Patches removed, most relevant first (%)", buttons=[]
                )
                removal_html = gr.HTML(elem_id="removal")
    controls = [mechanism, layer, head, gamma, hops, side]
    inputs = [active, picture, start, method, *controls]
    outputs = [map_html, graph_html, curves]
    quick: dict[str, Any] = {
        "trigger_mode": "always_last",  # what was chosen while the server was busy is not forgotten
        "show_progress": "hidden", "concurrency_id": "look", "concurrency_limit": 2,
    }  # fmt: skip
    work = quick | {"fn": told(show), "inputs": inputs, "outputs": outputs, "show_progress": "minimal"}

    def chosen(name: str | None) -> Any:
        if name is None:
            return gr.skip()
        check_choice("example", name, pictures)
        return read_picture(samples[name])

    def dropped(path: str) -> tuple[Any, None]:
        return read_picture(path), None

    changed = [layer.change, head.input, method.input, gamma.change, hops.input, side.input, start.input]
    done = [gr.on(changed, api_name="show", **work)]
    loaded = gr.on([page.load, example.input], told(chosen), example, picture, api_name="choose", **quick)
    sent = upload.upload(told(dropped), upload, [picture, example], api_name="upload", **quick)
    adjusted = [head, layer, side] if own else [head]  # the shipped models differ in their heads alone

    def adjust(name: str) -> Any:
        return _controls(name) if own else _controls(name)[0]

    switched = mechanism.input(adjust, mechanism, adjusted, api_name="heads", **quick)
    done += [before.success(api_visibility="private", **work) for before in (loaded, sent, switched)]
    for tab, name in ((first, TABS[0]), (second, TABS[1]), (third, TABS[2])):
        opened = tab.select(lambda name=name: name, None, active, api_visibility="private", queue=False)
        done.append(opened.success(api_visibility="private", **work))
    here = (told(step), [active, curves, percent], removal_html)
    percent.input(*here, api_name="step", **quick)
    for before in done:
        before.success(*here, api_visibility="private", **quick)


def _controls(model: str) -> list[Any]:
    """The heads, layers and sizes that can be chosen for a model."""
    (layers, heads), seen = sizes(model), list(on.sides(model))
    layer = gr.Slider(maximum=layers, value=layers)
    return [gr.Dropdown(_heads(heads), value=on.MEAN), layer, gr.Dropdown(seen, value=seen[0])]


def _heads(count: int) -> list[str]:
    return [on.MEAN, *(str(head) for head in range(1, count + 1))]


def _gigapixel_tab(files: dict[str, Path], max_megapixels: float) -> None:
    places = files | examples(LARGER)
    images, models = list(places), streamed()
    scene = gr.State()
    with gr.Row():
        with gr.Column(elem_classes="controls"):
            gr.Markdown(
                f"Linear-InfSA reads an image tile by tile, at its own resolution. Up to {max_megapixels:,.0f} "
                "megapixels: TIFF, whole slides, JPEG, PNG, npy."
            )
            name = gr.Dropdown(images, value=images[0] if images else None, label="Image on this machine")
            upload = gr.File(label="Or your own", height=72, elem_classes="drop")
            model = gr.Dropdown(models, value=models[0], label="Model", visible=len(models) > 1)
            button = gr.Button("Stream it", variant="primary")
        with gr.Column(elem_classes="results"):
            window = gr.HTML(
                '<p class="note">Nothing streamed yet. A megapixel takes a few seconds.</p>', elem_id="window"
            )

    def sent(
        name: str | None,
        path: str | None,
        model: str = models[0],
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> tuple[Scene, Any]:
        if path is None and name not in places:
            raise ValueError(f"choose an image, one of {images}, or drop a file")
        check_choice("model", model, models)
        chosen = Path(path) if path is not None else places[str(name)]
        progress(0, desc="opening")
        found = stream_scene(chosen, max_megapixels, lambda share, text: progress(share, desc=text), model)
        return found, show_scene(found)

    options: dict[str, Any] = {"concurrency_id": "stream", "concurrency_limit": 1}
    button.click(told(sent), [name, upload, model], [scene, window], api_name="stream", **options)


def theme() -> gr.themes.Base:
    """Colours of the figures and the fonts of the system: nothing is fetched."""
    fonts: dict[str, Any] = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    return gr.themes.Default(primary_hue="blue", neutral_hue="slate", text_size="sm", spacing_size="sm", **fonts)


@cache
def uploads() -> "TemporaryDirectory[str]":
    """The folder for what is uploaded to this process; it goes when the process ends."""
    parent = Path(os.environ.get("GRADIO_TEMP_DIR") or gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    folder = TemporaryDirectory(prefix="infsa-app-", dir=parent, ignore_cleanup_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = folder.name  # Gradio reads it again and again
    return folder


def serve(
    files: list[Path] | None = None,
    max_megapixels: float = MAX_MEGAPIXELS,
    *,
    checkpoints: list[str] | None = None,
    port: int | None = None,
    open_browser: bool = False,
) -> tuple[gr.Blocks, str]:
    """Serve the page to this machine only; return it and its address at once."""
    if not max_megapixels > 0:
        raise ValueError(f"max_megapixels must be more than 0, got {max_megapixels!r}")
    if port is not None:
        check_free(port)
    add(checkpoints or [])
    uploads()
    page = build(files, max_megapixels)
    _, address, _ = page.launch(
        server_name="127.0.0.1", server_port=port, share=False, inbrowser=open_browser, prevent_thread_lock=True,
        quiet=True, max_file_size=UPLOAD_LIMIT, footer_links=[], ssr_mode=False, pwa=False, mcp_server=False,
        theme=theme(), css=beside("page.css"), state_session_capacity=100,
        head=f"<script>{beside('viewer.js')}</script>", app_kwargs={"routes": [route()]},
    )  # fmt: skip
    return page, address


def beside(name: str) -> str:
    """The text of a file that belongs to the page."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def check_free(port: int) -> None:
    """Refuse a port of this machine that another program listens on, or that may not be used."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            why = str(error.strerror).lower()
            raise OSError(f"port {port} cannot be used ({why}): choose another --port, or none") from error
