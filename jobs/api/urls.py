from django.urls import path

from jobs.api import views

urlpatterns = [
    path("jobs", views.Jobs.as_view()),
    path("jobs/<str:job_id>", views.OneJob.as_view()),
    path("jobs/<str:job_id>/pause", views.PauseJob.as_view()),
    path("jobs/<str:job_id>/resume", views.ResumeJob.as_view()),
    path("jobs/<str:job_id>/cancel", views.CancelJob.as_view()),
    path("jobs/<str:job_id>/preview", views.JobPreview.as_view()),
    path("schedules/preview", views.SchedulePreview.as_view()),
]
