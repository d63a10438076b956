"""Multiple-choice evaluation: files, their loader, scores."""
