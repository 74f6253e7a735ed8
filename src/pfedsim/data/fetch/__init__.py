"""Download data sets and pretrained weights."""
