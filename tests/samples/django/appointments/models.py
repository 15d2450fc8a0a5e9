from django.db import models


class Appointment(models.Model):
    patient = models.CharField(max_length=100)
    reminded_by = models.CharField(max_length=40, blank=True)


class Note(models.Model):
    text = models.CharField(max_length=200)
    run = models.CharField(max_length=40)
    attempt = models.IntegerField()
