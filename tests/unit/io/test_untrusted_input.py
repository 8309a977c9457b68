"""Untrusted input: parsers accept it or reject it with a short message, and open no other files."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import sys
import time
from pathlib import Path

import inputs
import numpy as np
import pytest
import targets
from hypothesis import given, settings
from hypothesis import strategies as st
from untrusted_profiles import changed_profile

import tfswap
from tfswap import options, saved_model
from tfswap.devices.swap_options import NAMES, parse_options
from tfswap.io.untrusted_json import MAX_BYTES, MAX_VALUES, parse_json
from tfswap.jobs.lease import read_record
from tfswap.jobs.messages import FROM_JOBS, BadMessage, parse
from tfswap.machine import budget
from tfswap.plan.cache import PlanMemory
from tfswap.plan.renaming import renamed
from tfswap.plan.schema import FunctionPlan, SwapPlan, TensorSwap
from tfswap.traces.singa import read_singa
from tfswap.traces.timeline_file import load_profile

MUTANTS = 200
every_target = pytest.mark.parametrize("name", sorted(targets.TARGETS))


@every_target
def test_the_corpus_is_accepted_or_rejected(name: str) -> None:
    files = inputs.corpus(name)
    assert targets.run(name, (inputs.CORPUS / name / "good").read_bytes())
    for path in files:
        targets.run(name, path.read_bytes())


@every_target
def test_mutations_of_the_corpus_are_accepted_or_rejected(name: str) -> None:
    mutants = inputs.mutants(name, name in targets.JSON, seed=1)
    for data in itertools.islice(mutants, MUTANTS):
        targets.run(name, data)


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in inputs.CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 300 << 10 and max(sizes) < 32 << 10


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=64) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
FIELDS = tuple(json.loads(SwapPlan((FunctionPlan("f"),)).to_json()))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from((*FIELDS, "surprise")), values), values, values)
def test_any_json_is_a_plan_or_rejected(fields: dict, function: object, swap: object) -> None:
    entry = {"fingerprint": "f", "swaps": [swap], "order": []}
    for functions in ([function], [entry], function):
        text = json.dumps({"version": 1, "functions": functions, **fields})
        try:
            plan = SwapPlan.from_json(text)
        except ValueError as error:
            assert 0 < len(str(error)) < 4000 and "\n" not in str(error)[:40]
        else:
            assert SwapPlan.from_json(plan.to_json()) == plan


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(targets.TARGETS)), st.binary(max_size=200))
def test_any_bytes_are_accepted_or_rejected(name: str, data: bytes) -> None:
    targets.run(name, data)


# --- Invalid input, and the reasons in the errors. ---


def plan_text(**fields: object) -> str:
    return json.dumps({"version": 1, "functions": [], **fields})


def entry(**fields: object) -> str:
    return plan_text(functions=[{"fingerprint": "f", "swaps": [], "order": [], **fields}])


def swap(**fields: object) -> str:
    return entry(swaps=[{"tensor": "a:0", "size_bytes": 1, "gates": [], "returns": [], **fields}])


def slot(*fields: object) -> str:
    return entry(layouts=[[list(fields)]])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"version": 1, "functions": ' + "[" * 5000, "nested too deeply"),
        ('{"version": 1, "version": 1, "functions": []}', "has the key 'version' twice"),
        ('{"version": NaN}', "NaN is not a number"),
        ('{"version": 1, "min_bytes": 1e999, "functions": []}', "1e999 is not a finite number"),
        ('{"version": 1, "min_bytes": 1' + "0" * 5000 + "}", "is not JSON"),
        ("[" + "0," * MAX_VALUES + "0]", "more than"),
        (" " * (MAX_BYTES + 1), f"more than {MAX_BYTES}"),
        ('{"version": true, "functions": []}', "version True"),
        ('{"version": 1.0, "functions": []}', "version 1.0"),
        (plan_text(sections=0), "'sections' is or holds 0"),
        (plan_text(sections=1 << 40), "an integer from 1 to 4096"),
        (plan_text(min_bytes=-1), "'min_bytes' is or holds -1"),
        (plan_text(budget_bytes="../secret"), "'budget_bytes'"),
        (plan_text(functions={}), "'functions' is or holds {}; it must be a list"),
        (entry(order=[["a"]]), "a list of pairs of names"),
        (entry(order=["ab"]), "a list of pairs of names"),
        (entry(fingerprint=7), "'fingerprint' is or holds 7"),
        (entry(predicted_step_ns=1 << 80), "'predicted_step_ns'"),
        (swap(size_bytes=-5), "'size_bytes' is or holds -5"),
        (swap(size_bytes=0.5), "'size_bytes' is or holds 0.5"),
        (swap(gates="abc"), "'gates' is or holds 'abc'; it must be a list"),
        (swap(gates=["x" * 9000]), "a string of at most 8192 characters"),
        (swap(gates=["\ud800"]), "a string without surrogates"),
        (swap(threads=1 << 30), "'threads' is or holds 1073741824"),
        (swap(rate_percent=0), "'rate_percent' is or holds 0"),
        (swap(tier="tape"), "tier is 'tape'; allowed: host, compressed, file"),
        (swap(lazy=1), "'lazy' is or holds 1; it must be true or false"),
        (slot("a", 3, 0, 0, 1), "'kind' is or holds 3"),
        (slot("a", 0, 5000, 0, 1), "'ordinal' is or holds 5000"),
        (slot("a", 0, 0, -1024, 1), "'offset_bytes' is or holds -1024"),
        (slot("a", 0, 0, 0, 1 << 60), "'size_bytes'"),
        (slot("a\n#\nb", 0, 0, 0, 1), "not an op's name"),
        (slot("a", 0, 0, 0), "a slot is not a list of op, kind"),
    ],
)
def test_invalid_plans_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        SwapPlan.from_json(text)
    assert reason in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    ["1e99999999", "9" * 400, "1e400", "nan", "-1", "0x10", "1_000", "٣GiB", "1e30GiB", "inf"],
)
def test_invalid_amounts_are_rejected(text: str) -> None:
    begun_s = time.monotonic()
    for name in ("budget", "host_limit", "spill_limit"):
        with pytest.raises(ValueError):
            options.from_environment({f"TFSWAP_{name.upper()}": text})
    with pytest.raises(ValueError):
        budget.parse_bandwidth(10**400)
    assert time.monotonic() - begun_s < 1


@pytest.mark.parametrize("text", [b'{"kind": "leave", "kind": "leave"}', b"[" * 16000])
def test_messages_that_cannot_be_are_refused(text: bytes) -> None:
    with pytest.raises(BadMessage, match="not JSON"):
        parse(text, FROM_JOBS)


def test_invalid_leases_are_ignored(tmp_path: Path) -> None:
    good = json.loads((inputs.CORPUS / "lease" / "good").read_text())
    path = tmp_path / "lease"
    for field, value in (("weight", 1e999), ("weight", True), ("held_bytes", 10**40)):
        path.write_text(json.dumps({**good, field: value}))
        assert read_record(path) is None
    path.write_text(json.dumps(good))
    assert read_record(path) is not None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Malloc 0x1 64 99999999999999999999", "is not an event"),
        ("Malloc 0x1 99999999999999999999 5", "is not an event"),
        ("Malloc 0x1 64 -5", "is not an event"),
        ("Malloc 0x1 64 5\nRead 0x1 64 99999999999999", "some times are in milliseconds"),
        ("\xff", "line 1"),
    ],
)
def test_invalid_events_are_rejected(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "events"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=reason):
        read_singa(path)


# --- Running time. ---


def test_large_plans_take_linear_time() -> None:
    def seconds(edges: int) -> float:
        text = entry(order=[["a", "b"]] * edges)
        took_s = []
        for _ in range(3):  # the collector may run meanwhile
            begun_s = time.process_time()
            SwapPlan.from_json(text)
            took_s.append(time.process_time() - begun_s)
        return min(took_s)

    assert seconds(100_000) < 40 * max(seconds(10_000), 0.02)


@pytest.mark.parametrize(
    "name",
    [
        "tfswap/out/" * 700,
        "tfswap/in/" + "a_0_0/0_0/" * 700,
        "a" + "/again/1" * 1000,
        "PartitionedCall" * 500,
        "x/" * 4000,
    ],
)
def test_long_names_are_renamed_quickly(name: str) -> None:
    plan = FunctionPlan("f", (TensorSwap(f"{name}:0", 1, (name,), ()),), ((name, name),))
    begun_s = time.process_time()
    for _ in range(10):
        found = renamed(plan, "g", ["a", "b"])
        assert found is None or found.swaps == plan.swaps
    assert time.process_time() - begun_s < 1


# --- Input is not executed, and the paths in it are not opened. ---


def test_no_module_uses_functions_that_execute_their_input() -> None:
    """No pickle, marshal or eval, and nothing like them."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib"}
    calls = {"eval", "exec", "compile", "__import__"}
    found = []
    for path in Path(tfswap.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            bad = modules.intersection(names)
            if isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Name) and function.id in calls:
                    bad.add(function.id)
                if any(each.arg == "allow_pickle" for each in node.keywords):
                    bad.add("allow_pickle")
                numpy = isinstance(function, ast.Attribute) and function.attr in (
                    "load",
                    "fromfile",
                    "loadtxt",
                )
                if numpy and isinstance(function.value, ast.Name) and function.value.id == "np":
                    bad.add(f"np.{function.attr}")
            found += [f"{path.name}:{node.lineno}: {name}" for name in bad]
    assert found == []


_opened: list[str] = []
_watching = False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event in ("open", "os.listdir", "os.remove", "os.mkdir", "os.rename"):
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch)


def test_paths_in_what_is_read_are_not_opened(tmp_path: Path) -> None:
    """Every string of the input is a path."""
    global _watching
    secret = tmp_path / "secret"
    secret.write_text("never read")
    folder = tmp_path / "folder"
    (folder / "assets.extra").mkdir(parents=True)

    def with_paths(value: object) -> object:
        if isinstance(value, dict):
            kept = ("format", "version", "unmatched", "tier", "codec")
            return {k: v if k in kept else with_paths(v) for k, v in value.items()}
        if isinstance(value, list):
            return [with_paths(each) for each in value]
        return str(secret) if isinstance(value, str) else value

    plan = with_paths(json.loads((inputs.CORPUS / "plan" / "good").read_text()))
    plan_path, asset = tmp_path / "plan", folder / saved_model.ASSET
    plan_path.write_text(json.dumps(plan))
    asset.write_text(
        json.dumps({"format": saved_model.FORMAT, "options": {"budget": "1GiB"}, "plan": plan})
    )
    profile = changed_profile(
        tmp_path / "profile",
        lambda a: a.update(
            tensors=np.frombuffer(f"{secret}\n".encode() * len(a["absences"]), np.uint8),
            op_names=np.frombuffer(f"{secret}\n".encode() * len(a["op_start_ns"]), np.uint8),
        ),
    )
    _opened.clear()
    _watching = True
    try:
        assert SwapPlan.load(plan_path).functions[0].swaps[0].tensor == str(secret)
        assert load_profile(profile).timeline.op_names[0] == str(secret)
        assert saved_model.options_of(folder) is not None
    finally:
        _watching = False
    assert {Path(path).name for path in _opened} == {"plan", "profile", "tfswap.json"}


@pytest.mark.parametrize("option", ["spill_dir", "save_plan", "plan", "plan_cache", "broker"])
def test_a_saved_model_must_not_name_paths(tmp_path: Path, option: str) -> None:
    asset = tmp_path / saved_model.ASSET
    asset.parent.mkdir()
    data = {"format": saved_model.FORMAT, "plan": json.loads(SwapPlan().to_json())}
    asset.write_text(json.dumps({**data, "options": {option: "/tmp/x"}}))
    with pytest.raises(ValueError, match="options that a saved model cannot store"):
        saved_model.options_of(tmp_path)


def test_the_planning_time_of_a_saved_model_is_bounded(tmp_path: Path) -> None:
    asset = tmp_path / saved_model.ASSET
    asset.parent.mkdir()
    data = {"format": saved_model.FORMAT, "plan": json.loads(SwapPlan().to_json())}
    asset.write_text(json.dumps({**data, "options": {"planning_time_s": 1e9}}))
    with pytest.raises(ValueError, match="'planning_time_s' is or holds 1000000000.0"):
        saved_model.options_of(tmp_path)


def test_links_in_the_plan_cache_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "plans"
    folder.mkdir(mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes((inputs.CORPUS / "profile" / "good").read_bytes())
    path = folder / f"{targets.GRAPH}-context.profile"
    path.symlink_to(elsewhere)
    assert PlanMemory(folder, "context").profile(targets.GRAPH) is None
    assert not path.is_symlink() and elsewhere.exists()


def test_json_errors_name_the_text() -> None:
    with pytest.raises(ValueError, match="the answer is not JSON"):
        parse_json("{", "the answer")


any_values = values | st.sampled_from(
    [b"", object(), float("nan"), 10**400, range(3), {"CPU:0": None}]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*NAMES, "surprise"]), any_values, max_size=2))
def test_any_options_are_accepted_or_rejected(given: dict[str, object]) -> None:
    if isinstance(given.get("plan"), str):
        del given["plan"]  # the path of a file
    with contextlib.suppress(ValueError):
        parse_options(**given)
