"""An independent step simulator in plain Python, written from the documents: what the product is compared with."""
