"""A matrix in a file of tasks: one task for each combination of its values, or a refusal with the place and reason."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sandherd.client import HerdError
from sandherd.client.tasks.batch import order_tasks, read
from sandherd.client.tasks.matrix import MAX_COMBINATIONS, combinations, expand_matrices
from sandherd.contracts.labels import BATCH_LABEL

VALUE = st.text("ab12", min_size=1, max_size=4)
AXES = st.dictionaries(st.sampled_from("kmn"), st.lists(VALUE, min_size=1, max_size=3, unique=True), min_size=1)


def entry(matrix: Any, **more: Any) -> dict[str, Any]:
    return {"name": "test", "text": "work", "argv": ["true"], "matrix": matrix, **more}


def values_of(matrix: Any) -> list[dict[str, str]]:
    return [one.values for one in combinations(entry(matrix))]


@given(AXES)
def test_each_combination_is_one_task(axes: dict[str, list[str]]) -> None:
    """All combinations are made, each once, with its values as labels and in its texts."""
    text = " ".join(f"${{{{ matrix.{key} }}}}" for key in axes)
    found = order_tasks([entry(axes, text=text)])
    assert sorted(one.spec.text for one in found) == sorted(" ".join(values) for values in product(*axes.values()))
    for one in found:
        labels = {key: value for key, value in one.spec.labels.items() if "/" not in key}
        assert labels.keys() == axes.keys()
        assert one.spec.text == " ".join(labels[key] for key in axes)
        assert one.label == "-".join(["test", *(labels[key] for key in axes)])


@given(AXES, st.data())
def test_excluded_combinations_are_left_out(axes: dict[str, list[str]], data: st.DataObject) -> None:
    """A combination is left out if an entry of `exclude` has no other value for any key; the rest stays."""
    every = values_of(axes)
    row = {
        key: data.draw(st.sampled_from(axes[key]))
        for key in data.draw(st.sets(st.sampled_from(sorted(axes)), min_size=1))
    }
    expected = [values for values in every if not row.items() <= values.items()]
    if expected:
        assert values_of({**axes, "exclude": [row]}) == expected
    else:
        with pytest.raises(HerdError, match="it has no combination"):
            values_of({**axes, "exclude": [row]})


def test_include_adds_values_and_combinations() -> None:
    """The result of the example in GitHub's documentation of `include` is the documented one."""
    matrix = {
        "fruit": ["apple", "pear"],
        "animal": ["cat", "dog"],
        "include": [
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ],
    }
    assert values_of(matrix) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]
    assert values_of({"include": [{"a": 1}, {"a": 2}]}) == [{"a": "1"}, {"a": "2"}]


def test_names_are_safe_and_given_names_are_continued() -> None:
    """A name ends with its values; so does the name given by `task`, so that the file can be submitted again."""
    found = order_tasks([entry({"image": ["Debian:12", "alpine"]}, task="nightly", labels={"team": "web"})])
    assert [(one.label, one.task) for one in found] == [
        ("test-debian-12", "nightly-debian-12"),
        ("test-alpine", "nightly-alpine"),
    ]
    labels = [{key: value for key, value in one.spec.labels.items() if "/" not in key} for one in found]
    assert labels == [{"team": "web"}, {"team": "web", "image": "alpine"}]
    assert len({one.spec.labels[BATCH_LABEL] for one in found}) == 1


def test_dependency_on_a_matrix_is_one_on_all_its_combinations() -> None:
    """One combination can be named, and a combination of another matrix by its own values."""
    build = {**entry({"os": ["debian", "alpine"]}), "name": "build"}
    test = {**entry({"os": ["debian", "alpine"], "python": ["3.12"]}), "depends_on": ["build-${{ matrix.os }}"]}
    report = {"name": "report", "text": "x", "argv": ["true"], "depends_on": ["test", "build-alpine"]}
    first = {"name": "first", "text": "x", "argv": ["true"], "depends_on": ["build-debian"]}
    found = {one.label: one for one in order_tasks([report, first, test, build])}
    tasks = {one.task: label for label, one in found.items()}
    waits = {label: [tasks[other] for other in one.spec.depends_on] for label, one in found.items()}
    assert waits == {
        "build-debian": [],
        "build-alpine": [],
        "first": ["build-debian"],
        "test-debian-3-12": ["build-debian"],
        "test-alpine-3-12": ["build-alpine"],
        "report": ["test-debian-3-12", "test-alpine-3-12", "build-alpine"],
    }


def test_values_are_filled_into_all_texts_of_an_entry() -> None:
    """Values are filled into names of files and arguments, too. Other entries and expressions are unchanged."""
    given_entry = entry(
        {"python": ["3.12"], "seconds": [60]},
        argv=["tox", "-e", "py${{matrix.python}}"],
        files={"v-${{ matrix.python }}": "${{ github.sha }} ${{ matrix.python }} $${{ matrix.python }}"},
        task_seconds="${{ matrix.seconds }}",
    )
    (one,) = order_tasks([given_entry])
    assert [*one.spec.model_dump()["harness"]["argv"]] == ["tox", "-e", "py3.12"]
    assert one.spec.files == {"v-3.12": "${{ github.sha }} 3.12 ${{ matrix.python }}"}
    assert one.spec.task_seconds == 60
    other = {"name": "other", "text": "${{ matrix.python }}", "argv": ["true"]}
    assert expand_matrices([given_entry, other])[-1] == other


def test_value_is_never_read_as_an_expression() -> None:
    """A value with an expression in it stays a text: values are filled in once."""
    (one,) = order_tasks([entry({"a": ["${{ matrix.b }}"], "b": ["secret"]}, text="${{ matrix.a }}")])
    assert one.spec.text == "${{ matrix.b }}"


@pytest.mark.parametrize(
    ("matrix", "expected_text"),
    [
        ("3", "matrix: not a mapping"),
        ("{}", "matrix: it has no combination"),
        ("{include: []}", "matrix: it has no combination"),
        ("{python: 3}", "matrix.python: no list of values"),
        ("{python: []}", "matrix.python: no list of values"),
        ("{python: [3.10]}", "matrix.python[0]: YAML reads it as a number with a fraction, 3.1; quote it"),
        ("{python: ['3.9', 3.11]}", "matrix.python[1]: YAML reads it as a number with a fraction, 3.11; quote it"),
        ("{debug: [on]}", "matrix.debug[0]: YAML reads it as true or false, True; quote it"),
        ("{day: [2026-11-20]}", "matrix.day[0]: YAML reads it as a date, 2026-11-20; quote it"),
        ("{a: [~]}", "matrix.a[0]: YAML reads it as nothing, None; quote it"),
        ("{a: [[1]]}", "matrix.a[0]: not a text"),
        ("{a: ['–']}", "matrix.a[0]: '–' has no letter a to z and no digit"),
        ("{a: [1, '1']}", "matrix.a: '1' is there twice"),
        ("{a: ['3.1', '3-1']}", "matrix: two combinations are named test-3-1"),
        ("{a: [1], include: [{a: 2, b: 1}, {a: 2, b: 1}]}", "matrix: two combinations are named test-2-1"),
        ("{'a b': [1]}", "matrix: 'a b' is not a key"),
        ("{3: [1]}", "matrix: '3' is not a key"),
        ("{a: [1], include: {a: 2}}", "matrix.include: no list of mappings"),
        ("{a: [1], include: [{a: 3.10}]}", "matrix.include[0].a: YAML reads it as a number with a fraction"),
        ("{a: [1], exclude: [{b: 1}]}", "matrix.exclude[0]: the matrix has no 'b'"),
        ("{a: [1], exclude: [{a: 2}]}", "matrix.exclude[0]: it matches no combination"),
        ("{a: [1], exclude: [{a: 1}]}", "matrix: it has no combination"),
        (f"{{a: ['{'x' * 60}']}}", "has more than 63 characters"),
        (f"{{a: {list(range(17))}, b: {list(range(16))}}}", f"272 combinations; the maximum is {MAX_COMBINATIONS}"),
        (f"{{a: {list(range(256))}, include: [{{a: 256}}]}}", f"257 combinations; the maximum is {MAX_COMBINATIONS}"),
    ],
)
def test_invalid_matrix_is_refused(tmp_path: Path, matrix: str, expected_text: str) -> None:
    """The error names the file, the entry and the field, and has a remedy."""
    path = tmp_path / "tasks.yaml"
    path.write_text(f"tasks:\n  - {{name: test, text: x, argv: ['true'], matrix: {matrix}}}\n")
    with pytest.raises(HerdError) as raised:
        read(path)
    assert raised.value.line.startswith(f"{path}: test: matrix")
    assert expected_text in raised.value.line
    assert str(raised.value.problem.field).startswith("matrix")
    assert raised.value.problem.remedy


@pytest.mark.parametrize(
    ("more", "expected_text"),
    [
        ({"text": "${{ matrix.b }}"}, "test-1: text: this combination has no 'b'; it has a"),
        ({"argv": ["${{ matrix.a"]}, "test-1: argv: a reference to the matrix is not complete"),
        ({"files": {"x": "${{ matrix['a'] }}"}}, "test-1: files.x: a reference to the matrix is not complete"),
        ({"labels": {"a": "2"}}, "test-1: labels.a: the matrix sets this label"),
        ({"labels": 3}, "test-1: labels: not a mapping"),
        ({"name": "Test it"}, "Test it: name: no safe name"),
        ({"name": None}, "a task with a matrix: name: no safe name"),
        ({"depends_on": ["test"]}, "dependency cycle: "),
        ({"depends_on": ["test-2"]}, "test-1: it depends on 'test-2', which is not in the file"),
        ({"priority": "${{ matrix.a }}"}, "test-1: priority"),
    ],
)
def test_invalid_entry_with_a_matrix_is_refused(tmp_path: Path, more: dict[str, Any], expected_text: str) -> None:
    """The error names the file, the combination and the field."""
    path = tmp_path / "tasks.yaml"
    path.write_text(yaml.safe_dump({"tasks": [entry({"a": [1]}, **more)]}))
    with pytest.raises(HerdError) as raised:
        read(path)
    assert expected_text in raised.value.line
    assert str(path) in raised.value.line


def test_names_shared_with_a_matrix_are_refused() -> None:
    """A dependency would be ambiguous; a task that has the name of a combination is refused as well."""
    plain = {"name": "test", "text": "x", "argv": ["true"]}
    with pytest.raises(HerdError, match="test: name: two tasks have this name"):
        order_tasks([entry({"a": [1]}), plain])
    with pytest.raises(HerdError, match="two tasks are named 'test-1'"):
        order_tasks([entry({"a": [1]}), {**plain, "name": "test-1"}])


def test_example_of_a_matrix_is_valid() -> None:
    """The example of the documentation has the tasks that its comment names."""
    found = read(Path(__file__).parents[3] / "examples" / "batch" / "matrix.yaml")
    assert [one.label for one in found] == ["test-3-11-unit", "test-3-12-unit", "test-3-12-slow", "report"]
    assert [one.spec.attempt_seconds for one in found] == [60, 60, 600, None]


@pytest.mark.parametrize("bomb", ["aliases", "circle", "depth"])
def test_values_that_aliases_multiply_are_refused_before_they_are_expanded(bomb: str) -> None:
    """A file of a few hundred bytes would otherwise take gigabytes, or end with a traceback."""
    env: Any = ["x"] * 10
    if bomb == "aliases":
        for _ in range(8):
            env = [env] * 10
    elif bomb == "circle":
        env.append(env)
    else:
        for _ in range(2000):
            env = [env]
    entry = {"name": "a", "text": "x", "argv": ["true"], "matrix": {"k": [1, 2]}, "env": {"A": env}}
    with pytest.raises(HerdError, match="more than 10000 values"):
        expand_matrices([entry])


def test_combinations_of_a_file_are_limited() -> None:
    """Each entry may have 256, and all together 10,000."""
    values = list(range(256))
    entries = [{"name": f"a{n}", "text": "x", "argv": ["true"], "matrix": {"k": values}} for n in range(40)]
    with pytest.raises(HerdError, match="more than 10000 combinations"):
        expand_matrices(entries)


def test_number_of_thousands_of_digits_is_an_error_of_the_file(tmp_path: Path) -> None:
    """Python refuses to read it."""
    file = tmp_path / "tasks.yaml"
    file.write_text("tasks: [{name: a, text: x, argv: ['true'], matrix: {k: [" + "9" * 5000 + "]}}]")
    with pytest.raises(HerdError, match="neither YAML nor JSON"):
        read(file)
