"""Reward `exact`: the response is the label, white space around them aside."""


def score(response: str, answer: str) -> float:
    return float(response.strip() == answer.strip())


reward = score
