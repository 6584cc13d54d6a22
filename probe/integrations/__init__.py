"""The probe inside other people's training loops."""
