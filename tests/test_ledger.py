"""The cost tables and figures, on runs a stub played (every call of it is on record) and by hand; no model."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import MODELS, assert_same_bytes, small, stub
from scipy import stats as scipy_stats

from stackalign_core import plots, trainers
from stackalign_core.baselines import names as baseline_names
from stackalign_core.game import play
from stackalign_core.plots import ledger as figures
from stackalign_core.stats import proportion_interval
from stackalign_core.tables import ledger

D, G = 8, 4


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(run, engine, completions): two seeds of DPO and GRPO, every baseline, and DPO with three models."""
    completions = []

    def log(member, n, steps, tokens):
        return trainers.TrainingLog(
            [{"step": i + 1, "loss": 0.5, "num_tokens": tokens} for i in range(steps)], n, 0, 10
        )

    def grpo(member, prompts, reward, config, generation, engine, seed, output):
        for duel, _ in prompts:
            texts = [f"{member.name} {(seed + g + duel) % 3}" for g in range(G)]
            completions.append((member.name, texts))
            reward([duel] * G, texts)
        (output / "adapter_config.json").write_text("{}")
        (output / "adapter_model.safetensors").write_text("." * 5000)
        return log(member, len(prompts), 3, 100.0 * len(prompts))

    def dpo(member, pairs, config, engine, seed, output):
        (output / "adapter_config.json").write_text("{}")
        (output / "adapter_model.safetensors").write_text("." * 5000)
        return log(member, len(pairs), 2, math.nan)

    wanted = [small("stackelberg_dpo", seed) for seed in (0, 1)]
    wanted += [small("stackelberg_grpo", seed) for seed in (0, 1)]
    wanted += [small(name, seed) for name in ("best_init", "majority_vote", "moa", "debate") for seed in (0, 1)]
    wanted += [small("stackelberg_dpo", seed, models=MODELS[:3]) for seed in (0, 1)]
    root, done = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr(trainers, "train_dpo", dpo)
        patch.setattr(trainers, "train_grpo", grpo)
        for config in wanted:
            completions.clear()
            make = stub()
            done.append((play(config, root, make), make.made[0], list(completions)))
    return done


@pytest.fixture(scope="module")
def runs(played):
    return [run for run, *_ in played[:12]]


@pytest.fixture(scope="module")
def sizes(played):
    return [run for run, *_ in [*played[:2], *played[12:]]]


# The ledger


def test_d16_the_ledger_has_every_call_of_the_engine_and_every_completion_of_grpo(played):
    for run, engine, completions in played:
        table = ledger.ledger([run])
        engines = table[table.phase != "completions"]
        assert engines.calls.sum() == engine.usage.calls == len(engine.asked)
        assert engines.prompt_tokens.sum() == engine.usage.prompt_tokens
        assert table.calls[table.phase == "judging"].sum() == len(engine.requests("verdict"))
        assert table.calls[table.phase == "answers"].sum() == len(engine.requests("answer"))
        own = table[table.phase == "completions"]
        assert own.calls.sum() == sum(len(texts) for _, texts in completions)
        assert (own.completion_tokens == 100 * own.calls / G).all()
        assert set(table.iteration) <= {-1, 0, 1}


def test_time_is_neither_lost_nor_counted_twice_when_grpo_is_split(played):
    for run, *_ in played:
        costs = run.costs.assign(engine_seconds=run.costs.wall_seconds / 4)  # the stub's engine takes no time
        known = {name: getattr(run, name) for name in ("config", "label", "folder", "answers", "training", "is_grpo")}
        timed = SimpleNamespace(**known, models=run.models, costs=costs)
        table, frame = ledger.ledger([timed]), ledger.by_model([timed])
        assert table.wall_seconds.sum() == pytest.approx(costs.wall_seconds.sum())
        assert table.engine_seconds.sum() == pytest.approx(costs.engine_seconds.sum())
        assert (frame.model_seconds + frame.other_seconds).sum() == pytest.approx(costs.wall_seconds.sum())
        trained = costs[costs.phase == "train"].wall_seconds.sum()
        assert frame.model_seconds[frame.phase == "train"].sum() == pytest.approx(
            trained * (0.75 if run.is_grpo else 1)
        )
        assert frame.calls.sum() == table.calls.sum()


def test_by_model_is_in_the_pools_order_and_a_mean_over_seeds(runs, played):
    frame = ledger.by_model(runs[:2])
    answers = frame[frame.phase == "answers"]
    assert answers.model.tolist() == MODELS
    asked = [len([m for m, _ in engine.requests("answer") if m == MODELS[0]]) for _, engine, _ in played[:2]]
    assert answers.calls.iloc[0] == pytest.approx(np.mean(asked))
    assert set(frame.model[~frame.model.isin(MODELS)]) == {"(pool)", "(selected)"}
    assert (frame.seeds == 2).all()


def test_v6_a_run_without_a_ledger_or_token_count_raises(runs):
    empty = SimpleNamespace(costs=pd.DataFrame(), folder=runs[0].folder)
    with pytest.raises(ValueError, match="no cost ledger"):
        ledger.ledger([empty])
    grpo = runs[2]
    lacking = SimpleNamespace(
        answers=grpo.answers, training=grpo.training.query("model != 'qwen-a'"), folder=grpo.folder
    )
    with pytest.raises(ValueError, match=r"token count.*qwen-a"):
        ledger._completions(lacking)


def test_calls_by_purpose_split_the_evaluations(runs, played):
    frame = ledger.calls(runs).set_index(["method", "purpose"]).calls
    for index, (run, _, completions) in enumerate(played[:12:2]):
        mine, items = frame[run.label], run.evals.split.value_counts()
        chosen = len(run.selected) if len(run.duels) else 0
        assert mine["validation"] == items["validation"]
        assert mine["test"] == items["test"] + chosen
        both = [played[2 * index][1], played[2 * index + 1][1]]
        assert mine["judging"] == np.mean([len(engine.requests("verdict")) for engine in both])
        assert (mine["completions"] > 0) == bool(completions)
    assert frame["debate", "steps"] == 4 * 60 and frame["moa", "steps"] == 60
    broken = SimpleNamespace(
        **{name: getattr(runs[0], name) for name in ("config", "label", "folder", "selected", "is_grpo")},
        **{name: getattr(runs[0], name) for name in ("costs", "answers", "training")},
        evals=runs[0].evals.iloc[1:],
    )
    with pytest.raises(ValueError, match="evaluated items"):
        ledger.calls([broken])


def test_training_counts_models_steps_and_tokens(runs):
    frame = ledger.training(runs)
    assert set(frame.method) == {"stackelberg_dpo", "stackelberg_grpo"}
    for row in frame.itertuples():
        run = next(r for r in runs if (r.label, r.config.seed) == (row.method, row.seed))
        files = list(run.folder.glob(f"iter-{row.iteration:02d}/train/*/training.json"))
        facts = [json.loads(file.read_text()) for file in files]
        assert row.models == sum(fact["trained"] for fact in facts) == 4
        assert row.examples == sum(fact["examples"] for fact in facts)
        if run.is_grpo:
            assert (row.steps, row.tokens) == (12, 100 * 2 * D)  # 2D fights, 100 tokens each
        else:
            assert (row.steps, row.tokens) == (8, 40)
    assert ledger.training(runs[4:]).empty


# The law


def test_an_iteration_asks_for_2d_times_m_minus_1_and_makes_the_distinct_ones(played):
    for run, engine, _ in [*played[:4], *played[12:]]:
        frame = ledger.per_iteration([run])
        m, g = len(run.models), G if run.is_grpo else 1
        assert len(frame) == 2
        assert (frame.law == 2 * D * g * (m - 1)).all()
        assert (frame.asked == frame.law).all()
        assert (frame.verdicts == 2 * D * g * (m - 2)).all()
        assert (frame.paper == D * m).all()
        questions = run.schedule.merge(run.answers, on=["iteration", "duel"])
        judged = run.scores.merge(questions, on=["iteration", "duel", "model", "sample"])
        for row in frame.itertuples():
            mine = judged[judged.iteration == row.iteration]
            assert row.judging == len(mine.drop_duplicates(["judge", "instruction", "text"]))  # D12
        assert frame.judging.sum() == len(engine.requests("verdict"))


def law_frame(make, seeds=(0, 1), iterations=2):
    rows = []
    for seed in seeds:
        for t in range(iterations):
            for m in (3, 5, 9):
                law = 2 * 10 * (m - 1)
                rows.append({"method": str(m), "seed": seed, "m": m, "iteration": t, "asked": law, "law": law})
                rows[-1] |= {"paper": 10 * m, "calls": make(m, seed, t), "judging": 5 + seed, "verdicts": 10}
    return pd.DataFrame(rows)


def test_growth_is_the_power_of_m_minus_1():
    frame = law_frame(lambda m, seed, t: 7 * (m - 1) ** (0.8 + 0.1 * seed))
    power = ledger.growth(frame).set_index("kind")
    assert (power.power["asked"], power.low["asked"], power.high["asked"]) == pytest.approx((1, 1, 1))
    half = scipy_stats.t.ppf(0.975, 1) * 0.05
    assert (power.power["calls"], power.low["calls"], power.high["calls"]) == pytest.approx(
        (0.85, 0.85 - half, 0.85 + half)
    )
    assert (power.sizes == 3).all()
    one = ledger.growth(frame[frame.seed == 0])
    assert set(one.interval_over) == {"iterations"} and set(one.n_over) == {2}
    assert ledger.growth(frame[frame.m == 3]).power.isna().all()
    with pytest.raises(ValueError, match=r"\(1, 1\)"):
        ledger.growth(frame[~((frame.m == 5) & (frame.seed == 1) & (frame.iteration == 1))])


def test_scaling_has_the_law_beside_the_calls():
    frame = ledger.scaling(law_frame(lambda m, seed, t: 10 * m + 4 * seed + 2 * t)).set_index(["m", "kind"])
    row = frame.loc[(5, "calls")]
    half = scipy_stats.t.ppf(0.975, 1) * 2
    assert (row.value, row.low, row.high) == pytest.approx((53, 53 - half, 53 + half))
    assert (row.law, row.paper) == (80, 50)
    assert frame.value[5, "asked"] == 80


@pytest.mark.parametrize(
    ("exponent", "verdict"), [(1.0, "supported"), (0.7, "supported"), (2.0, "contradicted"), (0.1, "contradicted")]
)
def test_the_claim_of_linear_growth_fails_for_other_growth(exponent, verdict):
    from stackalign_core.exhibits import verdict as say

    frame = law_frame(lambda m, seed, t: 50 * (m - 1) ** (exponent + 0.002 * seed))
    [(_, low, high, evidence)] = ledger.claims(ledger.growth(frame), ledger.scaling(frame), None)
    assert say(low, high) == verdict and "3 of 3 sizes" in evidence


def test_the_claim_is_open_when_the_interval_is_wide():
    from stackalign_core.exhibits import verdict as say

    frame = law_frame(lambda m, seed, t: 50 * (m - 1) ** (0.5 + 0.5 * seed))
    [(_, low, high, _)] = ledger.claims(ledger.growth(frame), ledger.scaling(frame), None)
    assert say(low, high) == "not supported"
    single = frame[frame.m == 3]
    [(_, low, high, _)] = ledger.claims(ledger.growth(single), ledger.scaling(single), None)
    assert say(low, high) == "not measured"


def test_grpo_and_dpo_are_paired_by_seed_and_iteration(runs):
    frame = ledger.per_iteration(runs[:4])
    made = ledger.compare(frame, "stackelberg_grpo", "stackelberg_dpo").set_index("kind")
    assert made.difference["asked"] == 2 * D * (G - 1) * 3
    assert made.ratio["asked"] == G
    wide = frame.pivot(index="seed", columns=["method", "iteration"], values="calls")
    gap = (wide["stackelberg_grpo"] - wide["stackelberg_dpo"]).mean(axis=1)
    half = scipy_stats.t.ppf(0.975, 1) * gap.std(ddof=1) / math.sqrt(2)
    assert (made.difference["calls"], made.high["calls"]) == pytest.approx((gap.mean(), gap.mean() + half))
    told = ledger.claims(
        ledger.growth(frame), ledger.scaling(frame[frame.method == "stackelberg_dpo"]), made.reset_index()
    )
    assert told[1][1:3] == (made.low["calls"], made.high["calls"])
    with pytest.raises(ValueError, match=r"one of stackelberg_grpo and stackelberg_dpo only.*\(1, 0\)"):
        ledger.compare(
            frame[(frame.seed == 0) | (frame.method == "stackelberg_dpo")], "stackelberg_grpo", "stackelberg_dpo"
        )


def test_saved_is_the_share_of_verdicts_without_a_call():
    frame = law_frame(lambda m, seed, t: m).query("m == 3")
    saved = ledger.saved(frame)
    assert saved.saved.tolist() == pytest.approx([0.45, 0.45])  # of 10 verdicts 5 and 6 were calls
    assert (saved.n_over == 2).all()
    one = ledger.saved(frame[frame.seed == 0])
    assert one.saved.tolist() == [0.5, 0.5] and one.low.isna().all()
    assert "45%" in ledger.read_saved(frame)


# Table 7


def test_table7_evaluates_the_papers_formulas_and_counts_ours(runs, played):
    frame = ledger.complexity(runs, ledger.paper_table()).set_index("method")
    m, n = 4, 60
    assert frame.paper_value.to_dict() == pytest.approx(
        {
            "stackelberg_dpo": D * m,
            "stackelberg_grpo": D * m,
            "best_init": math.nan,
            "majority_vote": n * m,
            "moa": n * m,
            "debate": n * m * 2,
        },
        nan_ok=True,
    )
    counted = {"best_init": n, "majority_vote": n * m, "moa": n * (m + 1), "debate": 2 * n * m}
    for method, calls in counted.items():
        assert (frame.calls[method], frame.law[method], frame.per[method]) == (calls, calls, "test set")
        assert (frame.calls_to_law[method], frame.models_trained[method]) == (1, 0)
    verdicts = [len(engine.requests("verdict")) for _, engine, _ in played[:2]]
    assert frame.calls["stackelberg_dpo"] == pytest.approx(2 * D + np.mean(verdicts) / 2)
    assert frame.law["stackelberg_dpo"] == 2 * D * (m - 1)
    assert (frame.models_trained["stackelberg_dpo"], frame.optimiser_steps["stackelberg_dpo"]) == (4, 8)
    assert frame.paper_steps_value["stackelberg_dpo"] == 4
    assert "has no row" in ledger.read_complexity(frame.reset_index())


def test_every_baseline_has_a_law_and_an_unknown_one_raises():
    assert all(ledger._baseline_law(name, 10, 3) > 0 for name in ("best_init", "majority_vote", "moa", "debate"))
    assert {"best_init", "majority_vote", "moa", "debate"} <= set(baseline_names())
    with pytest.raises(ValueError, match="no law"):
        ledger._baseline_law("oracle", 10, 3)
    paper = ledger.paper_table()
    with pytest.raises(ValueError, match="MoA"):
        ledger.complexity([], paper[paper.method != "MoA"])


# Tokens


def test_tokens_are_all_of_the_ledger_and_of_training(runs, played):
    frame = ledger.tokens(runs)
    for start in range(0, 12, 2):
        pair = played[start : start + 2]
        label = pair[0][0].label
        mine = frame[frame.method == label]
        spent = [engine.usage.prompt_tokens + engine.usage.completion_tokens for _, engine, _ in pair]
        learnt = {"stackelberg_dpo": 2 * 40, "stackelberg_grpo": 2 * 2 * 100 * 2 * D}.get(label, 0)  # GRPO: and sampled
        assert mine.tokens.sum() == pytest.approx(np.mean(spent) + learnt)
    order = list(ledger.TOKEN_PHASES)
    for _, part in frame.groupby("method"):
        places = [order.index(phase) for phase in part.phase]
        assert places == sorted(places)
    assert "training" in ledger.read_tokens(frame)


def test_value_for_tokens_has_the_accuracy_of_the_selected_answers(runs):
    frame = ledger.value_for_tokens(runs).set_index("method")
    totals = ledger.tokens(runs).groupby("method").tokens.sum()
    for method, row in frame.iterrows():
        mine = [run for run in runs if run.label == method]
        table = np.array([run.selected.sort_values(["benchmark", "item"]).score for run in mine])
        assert (row.accuracy, row.low, row.high) == pytest.approx((table.mean(), *proportion_interval(table)))
        assert row.tokens == pytest.approx(totals[method])
        assert row.tokens_least <= row.tokens <= row.tokens_most
        assert math.isnan(row.gain) == (method not in ("stackelberg_dpo", "stackelberg_grpo"))
    run = runs[1]
    other = SimpleNamespace(
        **{
            name: getattr(run, name)
            for name in ("config", "label", "folder", "costs", "answers", "training", "is_grpo")
        },
        **{name: getattr(run, name) for name in ("evals", "duels", "models")},
        selected=run.selected.iloc[1:],
    )
    with pytest.raises(ValueError, match="without these test items"):
        ledger.value_for_tokens([runs[0], other])


def test_reading_value_names_who_is_cheaper_and_no_less_accurate():
    frame = pd.DataFrame({"method": ["x", "y", "z"], "tokens": [1.0, 2.0, 3.0], "accuracy": [0.5, 0.4, 0.6]})
    lines = ledger.read_value(frame.assign(low=0.1, high=0.9)).splitlines()
    assert [line.partition("no less accurate: ")[2] for line in lines] == ["", "x.", ""]


# Everything together


def test_every_reading_and_number_works_with_one_seed_and_two(runs, sizes):
    for chosen, pools in ((runs, sizes), (runs[::2], sizes[::2])):
        table7 = ledger.complexity(chosen, ledger.paper_table())
        frame = ledger.per_iteration([run for run in chosen if len(run.duels)])
        by_size = ledger.per_iteration(pools)
        power, scaling = ledger.growth(by_size), ledger.scaling(by_size)
        grpo, tokens = ledger.compare(frame, "stackelberg_grpo", "stackelberg_dpo"), ledger.tokens(chosen)
        readings = [
            ledger.read_complexity(table7),
            ledger.read_scaling(scaling, power),
            ledger.read_saved(frame),
            ledger.read_compare(grpo),
            ledger.read_tokens(tokens),
            ledger.read_value(ledger.value_for_tokens(chosen)),
        ]
        assert all(re.search(r"\d", text) and "nan" not in text for text in readings)
        numbers = ledger.key_numbers(table7, power, grpo, frame, tokens)
        assert all(map(math.isfinite, numbers.values()))
        assert numbers["calls asked for, stackelberg_grpo to stackelberg_dpo"] == G


# Figures


@pytest.fixture(scope="module")
def frames(runs, sizes):
    iterations = ledger.per_iteration(runs[:4])
    return {
        "scaling": ledger.scaling(ledger.per_iteration(sizes)),
        "calls": ledger.calls(runs),
        "saved": ledger.saved(iterations),
        "tokens": ledger.tokens(runs),
        "value": ledger.value_for_tokens(runs),
        "seconds": ledger.by_model(runs),
    }


@pytest.mark.parametrize("name", ["scaling", "calls", "saved", "tokens", "value", "seconds"])
def test_every_figure_fits_and_says_how_many_seeds(name, frames):
    figure = getattr(figures, name)(frames[name])
    assert figure.get_figwidth() in (plots.COLUMN, plots.PAGE)
    words = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    assert "2 seeds" in " ".join([*words, figure.get_supxlabel()])


@pytest.mark.parametrize("name", ["scaling", "value"])
def test_the_same_frame_gives_the_same_bytes(name, frames, tmp_path):
    assert_same_bytes(getattr(figures, name), frames[name], tmp_path)


def test_bars_stack_to_the_whole_in_thousands(frames):
    for name, column in (("calls", "calls"), ("tokens", "tokens")):
        axes = getattr(figures, name)(frames[name]).axes[0]
        assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(frames[name][column].sum() / 1000)


def test_seconds_stack_to_the_whole_time_in_a_panel_per_method(frames):
    figure = figures.seconds(frames["seconds"])
    width = sum(patch.get_width() for axes in figure.axes for patch in axes.patches)
    assert width == pytest.approx((frames["seconds"].model_seconds + frames["seconds"].other_seconds).sum())
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles[:2] == ["Stackelberg (DPO)", "Stackelberg (GRPO)"] and len(titles) == 6


def test_scaling_draws_the_law_and_the_papers_line(frames):
    axes = figures.scaling(frames["scaling"]).axes[0]
    assert axes.lines[0].get_ydata().tolist() == [2 * D * 2, 2 * D * 3]
    assert axes.lines[1].get_ydata().tolist() == [D * 3, D * 4]
