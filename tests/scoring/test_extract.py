"""Where the answer stands in a response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.scoring.math_answers import canonical, extract, reward, score


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"first \boxed{3}, no: \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}} and so on", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{5", None),
        (r"\boxed{4} or \boxed{5", None),
        (r"so \boxed{42}. Let me check again: \boxed{", None),
        (r"\boxed{4} within \boxed{}", None),
        (r"\boxed{4} within \boxed{  }.", None),
        (r"\boxed{4 \boxed{}}", None),
        (r"\boxed{x and \boxed{5}", "5"),
        (r"<think>\boxed{4}</think> so \boxed{5}", "5"),
        (r"<think>\boxed{4}</think> so it is four", None),
        (r"\boxed{4} <think> is it \boxed{4}?", None),
        (r"it is four</think>\boxed{4}", "4"),
        ("\\boxed{\n5\n}<|im_end|>", "5"),
        (r"$\boxed{x = {5}}$", "x = {5}"),
    ],
)
def test_the_last_box_if_it_is_whole(response: str, answer: str | None) -> None:
    """A response that was cut within its last box, or within its reasoning, has no answer."""
    assert extract(response, boxed_only=True) == answer
    if "it is four" not in response:
        assert extract(response) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed 5", "5"),
        (r"\boxed5", "5"),
        ("Answer:\n\n$5$", "5"),
        ("The answer is 5.", "5"),
        ("The answer is $5$.", "5"),
        ("The final answer is: 5", "5"),
        ("**Answer:** 5", "5"),
        ("Answer: $\\frac{1}{2}$ cm", "\\frac{1}{2}"),
        ("#### 42", "42"),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "5"),
        ("The answer is 5. Therefore we are done.", "5"),
        ("The answer is 3. Wait, the answer is 5.", "5"),
        ("so $x$ is $5$", "5"),
        (r"hence \(5\)", "5"),
        (r"hence \[5\]", "5"),
        ("nothing to be seen", None),
        ("", None),
        ("the answer is", None),
    ],
)
def test_without_a_box(response: str, answer: str | None) -> None:
    assert extract(response) == answer
    assert extract(response, boxed_only=True) is None


@pytest.mark.parametrize("response", [r"$\boxed 7$", "\\boxed 7\n", r"\boxed7", "Answer:\n7"])
def test_what_no_brace_closes_is_read_for_evaluation_and_never_paid(response: str) -> None:
    """Cut, `\\boxed 72` and `Answer:\\n72` are the same: what is paid must show its end itself."""
    assert (score(response, "7"), reward(response, "7")) == (1.0, 0.0)


def test_training_rewards_only_what_is_boxed() -> None:
    assert (score("The answer is 5.", "5"), reward("The answer is 5.", "5")) == (1.0, 0.0)
    assert score(r"\boxed{5}", r"Adding up, we get $\boxed{5}$.") == 1.0, "a whole solution as gold"


def test_votes_are_for_values() -> None:
    same = [r"\boxed{\frac12}", r"\boxed{0.5}", r"The answer is $\dfrac{1}{2}$.", r"\boxed{1/2}"]
    assert {canonical(text) for text in same} == {"1/2"}
    assert canonical(r"\boxed{2, 1}") == canonical(r"\boxed{\{1,2\}}")
    assert canonical(r"\boxed{(2, 1)}") != canonical(r"\boxed{(1,2)}")
    assert canonical(r"\boxed{[1, 2)}") != canonical(r"\boxed{(1, 2)}")
    assert canonical(r"\boxed{\text{Paris}}") == canonical(r"\boxed{paris}")
    assert canonical("nothing") == ""


@given(st.text(alphabet=st.sampled_from("\\{}boxed$ 12,.-()[]^_frac/%&"), max_size=80))
def test_nothing_it_is_given_makes_it_fail(text: str) -> None:
    extract(text)
    assert isinstance(canonical(text), str)
    assert isinstance(canonical(f"\\boxed{{{text}}}"), str)


@given(
    st.recursive(
        st.sampled_from(["5", "x", "\\{", "\\}", "\\\\"]),
        lambda inner: st.lists(inner, max_size=3).map(lambda x: "{" + "".join(x) + "}"),
        max_leaves=8,
    ).map(lambda content: f"a{content}")
)
def test_braces_of_a_box_are_balanced(content: str) -> None:
    assert extract(f"so \\boxed{{{content}}}, done") == content


@pytest.mark.parametrize("length", [1, 20_000])
def test_reasoning_that_was_cut_is_paid_at_no_length(length: int) -> None:
    thought = "<think>" + "so \\boxed{7} " * length
    assert reward(thought, "7") == 0
    assert reward(thought + "</think> \\boxed{7}", "7") == 1
