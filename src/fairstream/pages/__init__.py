"""HTML pages: Jinja2 templates, one style sheet, Vega charts, tables of scores."""
