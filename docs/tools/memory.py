"""Write into each library's README what its launch would take of an A100 with 80 GB.

    python -m docs.tools.memory

The models are Qwen2.5's of 1.5, 7 and 14 B, by the sizes in their config.json; the cell is
experiments/recipe/onpolicy_math.yaml on four GPUs of one node, with k3 in the loss.
"""

import tempfile
from pathlib import Path

from orchestrator import plugins
from orchestrator.errors import UnsupportedSetting
from orchestrator.library.memory import estimate
from orchestrator.library.model_size import ModelShape, ModelSize
from orchestrator.records import Cell
from orchestrator.spec import load
from orchestrator.spec.expand import expand

HAS = 80
LIBRARIES = ("trl", "verl", "openrlhf", "skyrl", "prime_rl")
BEGIN, END = "<!-- memory: python -m docs.tools.memory -->", "<!-- end of memory -->"
SHAPES = {
    "1.5": ModelShape(1536, 8960, 28, 12, 2, 128, 151_936, tie_word_embeddings=True),
    "7": ModelShape(3584, 18_944, 28, 28, 4, 128, 152_064, tie_word_embeddings=False),
    "14": ModelShape(5120, 13_824, 48, 40, 8, 128, 152_064, tie_word_embeddings=False),
}
SPEC = """\
defaults: [recipe: onpolicy_math, _self_]
name: memory
model: {{name: qwen2.5, path: Qwen/Qwen2.5}}
data: math
backend: {library}
studies:
  a: {{base: {{kl: k3.loss, kl.beta: 0.1, resources: {{num_nodes: 1, gpus_per_node: 4}}}}}}
"""


def block(library: str) -> str:
    """Return the table of one library, with its marks."""
    cell = _cell(library)
    rows = [
        "| Qwen2.5 | fixed | reference | activations | while it trains | vLLM | while it samples |",
        "|---|---|---|---|---|---|---|",
    ]
    use = plugins.load(library).gpu_memory(cell)
    if use is None:
        raise UnsupportedSetting(library, "resources", cell.resources, (), "It has no estimate.")
    for name, shape in SHAPES.items():
        size = ModelSize(shape.num_parameters, shape, "config.json")
        needed = estimate(use, size, "a100-80gb")
        part = needed.training
        columns = (
            needed.least,
            part.get("reference", 0),
            part["activations"],
            sum(part.values()),
            needed.sampling["engine"],
            sum(needed.sampling.values()),
        )
        texts = (f"**{gib:.0f}**" if gib > HAS else f"{gib:.0f}" for gib in columns)
        rows.append(f"| {name} B | {' | '.join(texts)} |")
    return "\n".join([BEGIN, *rows, END])


def _cell(library: str) -> Cell:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.yaml"
        path.write_text(SPEC.format(library=library), encoding="utf-8")
        return next(iter(expand(load(path))))


def with_block(text: str, library: str) -> str:
    """Return a README with its table written anew."""
    before, rest = text.split(BEGIN)
    return before + block(library) + rest.split(END, 1)[1]


def main() -> None:
    """Write the table of each README anew."""
    for library in LIBRARIES:
        readme = Path("backends") / library / "README.md"
        readme.write_text(with_block(readme.read_text(encoding="utf-8"), library), encoding="utf-8")


if __name__ == "__main__":
    main()
