"""What a sweep leaves behind: a folder of sealed Parquet slices on any file system, read and compacted."""
