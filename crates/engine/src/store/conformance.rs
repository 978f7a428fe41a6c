//! What every store must do alike: the suite that each backend runs whole.
