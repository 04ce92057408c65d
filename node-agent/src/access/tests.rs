//! How files behave, in a folder that stands for a node.
