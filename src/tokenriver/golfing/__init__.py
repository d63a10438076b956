"""The Parameter Golf workflow: fetch a frozen export, choose documents, train and export anew, score a model."""
