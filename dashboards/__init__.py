"""The page of an experiment for its reviewers: one self-contained HTML file.

It works from disk, offline, on a phone, on paper, and in a sandboxed frame (MLflow's artifact
preview). The file contains its styles, scripts, Vega and data, and a content security policy
forbids everything else. Only scripts whose hashes the policy names can run, so no text from a spec,
a log or a cell's name can run as a script.

Begin in page.py for the page, in pictures.py for PNG and PDF files of its figures, in page.js and
figures.js for what happens in the browser. serve.py is the server of `orch dashboard`.
"""

from dashboards.page import html as html
from dashboards.pictures import picture_names as picture_names
from dashboards.pictures import pictures as pictures
