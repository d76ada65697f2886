import pytest

from scaler.kube.scheduling import parse_selector

WEB = {"app": "web", "tier": "gold"}


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        pytest.param("app=web", [WEB], [{"app": "db"}, {}], id="equal"),
        pytest.param("app==web", [WEB], [{"app": "db"}], id="equal, written twice"),
        pytest.param("app = web", [WEB], [{"app": "db"}], id="equal, with spaces"),
        pytest.param("app!=web", [{"app": "db"}, {}], [WEB], id="unequal matches what lacks the label"),
        pytest.param("app=web,tier=gold", [WEB], [{"app": "web"}], id="all requirements"),
        pytest.param("app in (web, db)", [WEB, {"app": "db"}], [{"app": "x"}, {}], id="one of a set"),
        pytest.param("app in(web)", [WEB], [{}], id="one of a set, without a space"),
        pytest.param("app notin (db)", [WEB, {}], [{"app": "db"}], id="none of a set"),
        pytest.param(
            "app in (web),tier notin (silver,bronze)", [WEB], [{"app": "web", "tier": "silver"}], id="two sets"
        ),
        pytest.param("app", [WEB, {"app": ""}], [{}], id="present"),
        pytest.param("!app", [{}], [WEB, {"app": ""}], id="absent"),
        pytest.param("! app", [{}], [WEB], id="absent, with a space"),
        pytest.param("app=", [{"app": ""}], [WEB, {}], id="an empty value"),
        pytest.param("app in ()", [{"app": ""}], [WEB, {}], id="a set of the empty value"),
        pytest.param(
            "ray.io/cluster=first-raycluster",
            [{"ray.io/cluster": "first-raycluster"}],
            [{"ray.io/cluster": "second-raycluster"}],
            id="a prefixed key",
        ),
        pytest.param("", [WEB, {}], [], id="nothing required"),
    ],
)
def test_a_selector_matches_as_kubernetes_does(
    text: str, matching: list[dict[str, str]], other: list[dict[str, str]]
) -> None:
    selector = parse_selector(text)
    assert [selector.matches(labels) for labels in matching + other] == [True] * len(matching) + [False] * len(other)


@pytest.mark.parametrize(
    "text",
    ["app=web=db", "app in web", "app in (a", "a b", "app=(web)", "gpus>4", "gpus < 4", "=web", "!", "app in (a) b"],
)
def test_what_is_not_understood_is_refused_and_not_guessed_at(text: str) -> None:
    """A selector that matches the wrong pods judges the wrong GPUs."""
    with pytest.raises(ValueError, match="is not a label requirement"):
        parse_selector(text)


def test_a_selector_as_long_as_an_object_may_be_is_refused_at_once() -> None:
    """One tenant's Deployment must not delay the answers for those of others."""
    with pytest.raises(ValueError, match="is too long"):
        parse_selector("app=" + "a," * 100_000)
