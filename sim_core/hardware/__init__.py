"""The hardware that is simulated: device, node, fabric, and the presets."""
