"""What is trained: the immutable `Workload`, its readers, and the rules that scale it to other plans."""
