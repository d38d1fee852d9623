"""The results of a reproduction as a page and as pictures; both need the extra `report`."""

from fairstream.paper.report.figures import PictureFormat, write_figures
from fairstream.paper.report.page import write_report

__all__ = ["PictureFormat", "write_figures", "write_report"]
