"""What is trained on: device, node and fabric, and the presets."""
