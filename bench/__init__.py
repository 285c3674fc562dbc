"""Measures of toque: `python -m bench` lists them.

Each file is one measure, or one helper that several of them share.
"""
