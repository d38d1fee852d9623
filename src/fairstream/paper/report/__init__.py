"""What a reproduction found, as one page that opens anywhere and as pictures."""

from fairstream.paper.report.writing import PictureFormat, write_figures, write_report

__all__ = ["PictureFormat", "write_figures", "write_report"]
