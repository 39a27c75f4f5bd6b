"""What a reviewer looks at: one self-contained page per experiment.

Works from disk, offline, on a phone, printed, and in a sandboxed frame (MLflow's artifact
preview): styles, scripts, plotly.js and the data are inlined, and a content security policy
forbids everything else. Only the scripts whose hashes it names can run, so nothing that comes from
a spec, a log or a cell's name can.

Served live (serve.py), it is kept up to date by board.py and renews itself by live.js.
"""

from dashboards.page import html as html
from dashboards.pictures import pictures as pictures
