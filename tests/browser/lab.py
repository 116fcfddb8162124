"""Notebooks in a real browser: JupyterLab's menu runs them, and the page shows what they should.

Not collected by a plain ``pytest``; ``make test-browser`` runs it. It needs Chromium: the system's, the one that
``playwright install chromium`` fetches, or any other that the variable CHROMIUM names. The project's runs are used, or
played (minutes) if they are missing; its notebooks and figures stay as they are, the browser gets copies.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make test-browser)")
pytest.importorskip("jupyterlab", reason="jupyterlab is not installed (make test-browser)")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ["00_quickstart.ipynb", "04_curriculum.ipynb"]
SCREENSHOTS = ROOT / "runs" / "browser"
"""Where a failure leaves a picture of the page."""

START_S, PAGE_S, RUN_S = 120, 60, 45 * 60
"""Patience with the server, with the page, and with a notebook whose runs have to be played first."""

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of sight are not in the page
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "completer-extension/manager": {"autoCompletion": False},
}

# What the notebook in front shows: the prompt of every code cell, how many outputs it has and whether they take up
# room, what went wrong, and the width of every picture as the browser decoded it.
SNAPSHOT = r"""() => {
    const panel = document.querySelector(".jp-NotebookPanel:not(.lm-mod-hidden)");
    const all = (node, selector) => [...node.querySelectorAll(selector)];
    const code = window.jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === "code");
    const outputs = code.flatMap(cell => cell.model.outputs.toJSON());  // in the page an error looks like any stderr
    return {
        status: panel.querySelector(".jp-Notebook-ExecutionIndicator")?.dataset.status,
        cells: all(panel, ".jp-CodeCell").map(cell => ({
            prompt: cell.querySelector(".jp-InputPrompt").innerText.trim(),
            outputs: all(cell, ".jp-OutputArea-output").filter(output => output.offsetHeight > 0).length,
        })),
        errors: outputs.filter(output => output.output_type === "error").map(output => output.evalue),
        pictures: all(panel, ".jp-OutputArea-output img").map(img => img.complete ? img.naturalWidth : 0),
        widgets: all(panel, '[data-mime-type*="widget"]').length,
        dialogs: all(document, ".jp-Dialog").map(dialog => dialog.innerText),
        text: panel.innerText,
    };
}"""

# The kernel's own state; the page says "idle" a moment before it is connected, and asks for a kernel if run then.
READY = """() => {
    const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
    const kernel = session?.isReady ? session.session?.kernel : null;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project folder with copies of the notebooks and parameters, and with the runs that are there."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("notebooks", "parameters"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "figures").mkdir()
    (ROOT / "runs").mkdir(exist_ok=True)
    (folder / "runs").symlink_to(ROOT / "runs", target_is_directory=True)
    return folder


@pytest.fixture(scope="module")
def server(project, tmp_path_factory):
    """JupyterLab on a free port, without any settings of this machine's user: (address, token)."""
    home = tmp_path_factory.mktemp("jupyter")
    for name, settings in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    token = secrets.token_hex(16)
    folders = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
    environment = os.environ | {f"JUPYTER_{name}_DIR": str(home / value) for name, value in folders.items()}
    environment |= {
        "JUPYTER_TOKEN": token,
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={free_port()}", f"--ServerApp.root_dir={project}"]
    log = home / "server.log"
    with log.open("w") as stream:
        started = subprocess.Popen(command, cwd=project, env=environment, stdout=stream, stderr=stream)
    try:
        yield address_of(started, home / "runtime", log), token
    finally:
        started.terminate()  # its kernels end with it
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def address_of(started, runtime, log):
    """The server's own word on its address: it takes another port if ours was taken meanwhile."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and started.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                url = json.loads(file.read_text())["url"]
                with socket.create_connection(("127.0.0.1", int(re.search(r":(\d+)/", url)[1])), 1):
                    return url
            except (OSError, ValueError):
                continue
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def browser():
    """Chromium; without one the tests are skipped, and say so."""
    with sync_api.sync_playwright() as playwright:
        candidates = [os.environ.get("CHROMIUM"), shutil.which("chromium"), shutil.which("chromium-browser")]
        candidates += [shutil.which("google-chrome"), playwright.chromium.executable_path]
        found = next((path for path in candidates if path and Path(path).is_file()), None)
        if found is None:
            pytest.skip("no Chromium: install it (apt install chromium, or playwright install chromium)")
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        opened = playwright.chromium.launch(executable_path=found, args=arguments)
        yield opened
        opened.close()


@contextmanager
def notebook(browser, server, name):
    """The page with a notebook in it, its kernel ready; a failure leaves a screenshot."""
    address, token = server
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(1000 * PAGE_S)
    try:
        page.goto(f"{address}lab/workspaces/{Path(name).stem}/tree/notebooks/{name}?token={token}")
        page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell .jp-InputPrompt")
        page.wait_for_function(READY)
        yield page
    except BaseException:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{Path(name).stem}.png")
        raise
    finally:
        page.close()


def menu(page, title, entry):
    """Choose an entry of the menu bar with the mouse."""
    page.locator(".lm-MenuBar-item").get_by_text(title, exact=True).click()
    page.locator(".lm-Menu-item").get_by_text(entry, exact=True).click()


def run_all(page):
    """Clear every output, run all cells, and wait until the kernel has done the last: what the page shows then."""
    menu(page, "Edit", "Clear Outputs of All Cells")
    assert not any(cell["outputs"] for cell in page.evaluate(SNAPSHOT)["cells"])
    menu(page, "Run", "Run All Cells")
    deadline = time.monotonic() + RUN_S
    while time.monotonic() < deadline:
        shown = page.evaluate(SNAPSHOT)
        assert shown["dialogs"] == []
        ran = all(re.fullmatch(r"\[\d+\]:?", cell["prompt"]) for cell in shown["cells"])
        if shown["errors"] or (ran and shown["status"] == "idle" and all(shown["pictures"])):
            return shown
        time.sleep(0.5)
    pytest.fail(f"the notebook is not done after {RUN_S} s: {[cell['prompt'] for cell in shown['cells']]}")


def check(shown, source):
    """Nothing went wrong, every cell but the parameters shows something, and all figures are there."""
    assert shown["errors"] == []
    silent = [i for i, cell in enumerate(shown["cells"]) if not cell["outputs"]]
    assert silent == [0], "only the parameters cell shows nothing"
    figures = sum("show.figure(" in cell.source for cell in source.cells if cell.cell_type == "code")
    assert figures > 0
    assert len(shown["pictures"]) == figures
    assert min(shown["pictures"]) > 100
    assert shown["widgets"] == 0
    assert "Error displaying widget" not in shown["text"] and "Loading widget" not in shown["text"]


def change(page, old, new):
    """Put another line in the place of ``old``, with the keyboard, in the first cell that has it."""
    line = page.locator(".jp-CodeCell .cm-line").filter(has_text=re.compile(f"^{re.escape(old)}$")).first
    line.scroll_into_view_if_needed()
    line.click()
    page.keyboard.press("End")
    page.keyboard.press("Shift+Home")
    page.keyboard.insert_text(new)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_run_all_in_jupyterlab(browser, server, project, name):
    """Run All shows every figure; so it does again, in the same kernel, after a parameter was changed by hand."""
    file = ROOT / "notebooks" / name
    committed = file.read_bytes()
    source = nbformat.read(file, as_version=4)
    with notebook(browser, server, name) as page:
        first = run_all(page)
        check(first, source)
        assert [int(cell["prompt"].strip("[]:")) for cell in first["cells"]] == list(range(1, len(first["cells"]) + 1))

        change(page, 'profile = "tiny"', 'profile = "browser"')
        again = run_all(page)
        check(again, source)
        assert len(again["pictures"]) == len(first["pictures"])
    for profile in ("tiny", "browser"):
        made = json.loads((project / "figures" / profile / f"{Path(name).stem}.json").read_text())
        assert made["profile"] == profile and made["exhibits"]
        for exhibit in made["exhibits"]:
            assert (project / "figures" / profile / f"{exhibit['name']}.csv").is_file()
    assert file.read_bytes() == committed
