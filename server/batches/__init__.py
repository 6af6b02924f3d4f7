"""Files and batches: kept in a folder, answered when interactive requests leave room."""
