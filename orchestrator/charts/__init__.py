"""Charts: Vega-Lite specifications as plain data, and their PNG, PDF and SVG files.

A figure is a list of views. A view is a specification without rows, width and colours: it has a
theme's names for colours (`$text`), and its rows come from a table. The report's page completes a
view in the browser. `files.py` completes the same view for a file, and vl-convert draws it without
a browser.
"""
