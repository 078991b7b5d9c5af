"""What a learner looks at: figures and pages made of facts and predictions."""
