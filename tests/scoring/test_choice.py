"""The letter of a multiple-choice answer."""

import pytest

from orchestrator.scoring.choice import extract, score


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("b", "B"),
        ("B.", "B"),
        (" **B** ", "B"),
        ("B. Paris", "B"),
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{B}}", "B"),
        (r"\boxed{(b)}", "B"),
        (r"$\boxed{C}$", "C"),
        ("(B) Paris", "B"),
        ("it is b", None),
        (r"\boxed{\textbf{(D)}}", "D"),
        (r"\boxed{A}, no: \boxed{B}", "B"),
        (r"\boxed{b}", "B"),
        (r"\boxed{\text{B. Paris}}", "B"),
        (r"\boxed{42}. The answer is C.", "C"),
        ("The answer is B.", "B"),
        ("The answer is (B).", "B"),
        ("the correct answer is: C", "C"),
        ("Answer: D", "D"),
        ("**Answer:** D", "D"),
        ("**Answer: D**", "D"),
        ("answer is $C$", "C"),
        ("The answer is A. Wait, the answer is B.", "B"),
        ("The correct choice is option B", "B"),
        ("The answer is **(C)** because", "C"),
        ("Therefore, the answer is \\text{D}.", "D"),
        ("A) because it is so", "A"),
        ("Let us see.\nIt must be so.\nC. Rome", "C"),
        ("The answer is for sure D, it can't be A or B", "D"),
        ("I choose option b", "B"),
        ("the option a man picks", None),
        ("It's D", "D"),
        ("It's A man", None),
        ("The answer is A or B", None),
        ("The answer is (A) or option (B).", None),
        ("The answer is Apple", None),
        ("I do not know", None),
        ("", None),
        ("<think> the answer is B.", None),
        ("<think> the answer is C. </think> The answer is B.", "B"),
        ("E", None),
        ("The answer is a matter of taste", None),
        ("A man walks into a bar", None),
    ],
)
def test_letters(response: str, letter: str | None) -> None:
    assert extract(response) == letter
    assert score(response, "B") == float(letter == "B")


def test_more_letters_and_long_responses() -> None:
    assert extract("The answer is J.", letters="ABCDEFGHIJ") == "J"
    assert extract("The answer is J.") is None
    assert extract("x" * 100_000 + " The answer is B.") == "B"
    assert extract("\\boxed{" * 20_000) is None
    assert score("The answer is B.", " b ") == 1.0
