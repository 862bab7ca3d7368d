"""Run directories: what a run keeps on disk, and how it is checked again."""
