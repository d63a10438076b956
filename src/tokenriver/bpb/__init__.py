"""Bits per byte: how many bytes ids stand for, and two named definitions of the figure."""
