"""Pools on disk: everything that cannot play is refused by name, without loading a model."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stackalign_core.config import ConfigError
from stackalign_core.pool import ARENA, Member, PoolError, check_member, folder_digest, load_pool, tensor_shapes

THREE = ["llama-a", "qwen-a", "neox-a"]


@pytest.fixture
def folder(tmp_path):
    """A copy of three of the arena's models, one of each base."""
    pool = tmp_path / "pool"
    for part in ("bases/llama", "bases/qwen3", "bases/neox", *(f"adapters/{name}" for name in THREE)):
        shutil.copytree(ARENA / part, pool / part)
    write_pool(pool)
    return pool


def write_pool(folder, **changes):
    """pool.yaml with the three models; ``changes`` replaces a model's entry."""
    bases = {"llama-a": "llama", "qwen-a": "qwen3", "neox-a": "neox"}
    entries = {
        name: {"name": name, "base": f"bases/{base}", "adapter": f"adapters/{name}"} for name, base in bases.items()
    }
    for name, change in changes.items():
        entries[name.replace("_", "-")] |= change
    (folder / "pool.yaml").write_text(json.dumps({"models": list(entries.values())}))


def cut(file, keep=None):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - 1 if keep is None else keep])


def test_a_whole_pool_loads_in_its_order(folder):
    pool = load_pool(folder)
    assert pool.names == THREE
    assert len(pool) == 3
    assert pool["qwen-a"] == Member("qwen-a", folder / "bases/qwen3", folder / "adapters/qwen-a")
    assert re.fullmatch(r"[0-9a-f]{64}", pool.digest)


def test_the_models_asked_for_play_in_the_order_asked():
    names = ["neox-a", "llama-b", "qwen-c", "llama-a"]
    assert load_pool("arena", names).names == names


def test_a_model_may_come_without_adapter(folder):
    write_pool(folder, llama_a={"adapter": None})
    assert load_pool(folder)["llama-a"].adapter is None


def breakages():
    """name -> (what is done to the folder, what the message must say)."""
    llama, adapter = "bases/llama", "adapters/llama-a"
    return {
        "no folder": (lambda f: shutil.rmtree(f), "not a pool folder"),
        "no pool.yaml": (lambda f: (f / "pool.yaml").unlink(), "pool.yaml"),
        "no base folder": (lambda f: shutil.rmtree(f / llama), "'llama-a'.*config.json"),
        "no base config": (lambda f: (f / llama / "config.json").unlink(), "'llama-a'.*config.json"),
        "no tokenizer": (lambda f: (f / llama / "tokenizer.json").unlink(), "'llama-a'.*tokenizer.json"),
        "no weights": (lambda f: (f / llama / "model.safetensors").unlink(), "'llama-a'.*safetensors"),
        "no adapter folder": (lambda f: shutil.rmtree(f / adapter), "'llama-a'.*adapter_config.json"),
        "no adapter config": (lambda f: (f / adapter / "adapter_config.json").unlink(), "'llama-a'.*adapter_config"),
        "no adapter weights": (lambda f: (f / adapter / "adapter_model.safetensors").unlink(), "'llama-a'.*adapter_m"),
        "base cut by a byte": (lambda f: cut(f / llama / "model.safetensors"), "'llama-a'.*model.safetensors.*trunc"),
        "base cut to its header": (lambda f: cut(f / llama / "model.safetensors", 100), "'llama-a'.*truncated"),
        "base empty": (lambda f: cut(f / llama / "model.safetensors", 0), "'llama-a'.*truncated"),
        "base cut in its length": (lambda f: cut(f / llama / "model.safetensors", 5), "'llama-a'.*truncated"),
        "base is text": (lambda f: (f / llama / "model.safetensors").write_text("version 1" * 99), "'llama-a'.*trunc"),
        "base is JSON, not a header": (lambda f: not_a_header(f / llama / "model.safetensors"), "'llama-a'.*trunc"),
        "adapter cut by a byte": (lambda f: cut(f / adapter / "adapter_model.safetensors"), "'llama-a'.*truncated"),
        "another architecture's adapter": (
            lambda f: write_pool(f, llama_a={"adapter": "adapters/neox-a"}),
            "'llama-a'.*neox-a.*does not fit.*llama",
        ),
        "another shape's adapter": (
            lambda f: write_pool(f, llama_a={"adapter": "adapters/qwen-a"}),
            "'llama-a'.*qwen-a.*does not fit.*llama",
        ),
        "the other way round": (
            lambda f: write_pool(f, qwen_a={"adapter": "adapters/llama-a"}),
            "'qwen-a'.*llama-a.*does not fit.*qwen3",
        ),
        "equal names": (lambda f: write_pool(f, qwen_a={"name": "llama-a"}), "same name"),
    }


def not_a_header(file):
    header = b'[1, 2, "three"]'
    file.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize("kind", breakages())
def test_a_broken_pool_is_refused_by_name(folder, kind):
    breaking, message = breakages()[kind]
    load_pool(folder)
    breaking(folder)
    with pytest.raises(PoolError, match=f"(?s){message}"):
        load_pool(folder)


@pytest.mark.parametrize("name", ["a/b", "", ".hidden", "two words", "-dash", "ä", "a\n", "..", "a:b", "x\\y"])
def test_a_name_that_is_no_file_name_is_refused(folder, name):
    write_pool(folder, llama_a={"name": name})
    with pytest.raises((PoolError, ConfigError), match=r"pool\.yaml"):
        load_pool(folder)


def test_unknown_keys_in_the_pool_file_are_refused(folder):
    write_pool(folder, llama_a={"adaptor": "adapters/llama-a"})
    with pytest.raises(ConfigError, match=r"adaptor.*did you mean 'adapter'|unknown key 'models.0.adaptor'"):
        load_pool(folder)


def test_unknown_names_are_refused_and_the_known_listed(folder):
    with pytest.raises(PoolError, match=r"llama-z.*llama-a, qwen-a, neox-a"):
        load_pool(folder, ["llama-a", "qwen-a", "llama-z"])


@pytest.mark.parametrize("names", [THREE[:2], THREE[:1], []])
def test_fewer_than_three_models_cannot_judge(folder, names):
    with pytest.raises(PoolError, match="at least 3"):
        load_pool(folder, names)


def test_a_model_asked_for_twice_does_not_make_three(folder):
    with pytest.raises((PoolError, ConfigError)):
        load_pool(folder, ["llama-a", "qwen-a", "llama-a"])


def test_only_the_models_that_play_are_checked(folder):
    shutil.copytree(folder / "adapters/llama-a", folder / "adapters/spare")
    settings = json.loads((folder / "pool.yaml").read_text())
    settings["models"].append({"name": "spare", "base": "bases/llama", "adapter": "adapters/spare"})
    (folder / "pool.yaml").write_text(json.dumps(settings))
    cut(folder / "adapters/spare/adapter_model.safetensors")
    assert load_pool(folder, THREE).names == THREE
    with pytest.raises(PoolError, match="spare"):
        load_pool(folder)


def test_weights_in_several_files_count_together(folder):
    """A base in shards: the adapter's modules may be in any of them, and every shard must be whole."""
    from safetensors.torch import load_file, save_file

    base = folder / "bases/llama"
    tensors = load_file(base / "model.safetensors")
    names = sorted(tensors)
    (base / "model.safetensors").unlink()
    for i, part in enumerate((names[:9], names[9:])):
        save_file({name: tensors[name] for name in part}, base / f"model-{i}.safetensors")
    check_member(load_pool(folder)["llama-a"])
    cut(base / "model-1.safetensors")
    with pytest.raises(PoolError, match="model-1"):
        load_pool(folder)


def test_shapes_come_from_the_header(folder):
    from safetensors.torch import load_file

    file = folder / "adapters/neox-a/adapter_model.safetensors"
    assert tensor_shapes(file, "x") == {name: list(tensor.shape) for name, tensor in load_file(file).items()}


def test_the_digest_is_the_contents_not_the_place(folder, tmp_path):
    before = load_pool(folder).digest
    folder.rename(tmp_path / "elsewhere")
    assert load_pool(tmp_path / "elsewhere").digest == before
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "copy")
    assert load_pool(tmp_path / "copy").digest == before


@pytest.mark.parametrize("part", ["bases/llama/model", "adapters/llama-a/adapter_model"])
def test_the_digest_changes_with_one_byte_of_weights(folder, part):
    before = load_pool(folder).digest
    file = folder / f"{part}.safetensors"
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(bytes(content))
    assert load_pool(folder).digest != before


def test_the_digest_depends_on_who_plays_and_in_which_order(folder):
    digests = {load_pool("arena", names).digest for names in (THREE, THREE[::-1], [*THREE, "llama-b"])}
    assert len(digests) == 3
    assert load_pool(folder, THREE).digest in digests, "the same files elsewhere"


def test_the_digest_knows_names_from_adapters(folder):
    """Two models that swap their names are another pool."""
    before = load_pool(folder).digest
    write_pool(folder, llama_a={"name": "x"}, qwen_a={"name": "y"})
    assert load_pool(folder).digest != before


def test_a_folders_digest_knows_names_and_bounds(tmp_path):
    def made(name, files):
        for file, content in files.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / file).write_text(content)
        return folder_digest(tmp_path / name)

    digests = [made("a", {"x": "12", "y": "3"}), made("b", {"x": "1", "y": "23"}), made("c", {"x": "12", "z": "3"})]
    assert len(set(digests)) == 3
    assert made("d", {"y": "3", "x": "12"}) == digests[0]


def test_a_pool_is_checked_without_torch(folder):
    code = (
        "import sys\n"
        "from stackalign_core.pool import PoolError, load_pool\n"
        "load_pool(sys.argv[1])\n"
        "load_pool('arena')\n"
        "open(sys.argv[1] + '/adapters/llama-a/adapter_model.safetensors', 'r+b').truncate(1000)\n"
        "try:\n"
        "    load_pool(sys.argv[1])\n"
        "except PoolError:\n"
        "    print(sorted({'torch', 'transformers', 'peft', 'trl'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_a_pool_shows_as_a_table(folder):
    html = load_pool(folder)._repr_html_()
    assert html.count("<tr>") == 4
    assert "<td>qwen-a</td><td>qwen3</td><td>qwen-a</td>" in html
