# One image for every process of the platform; docker-compose.yml says which command each runs.
FROM python:3.11-slim AS packages
COPY requirements.lock /
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --no-deps --require-hashes --disable-pip-version-check -r /requirements.lock

FROM python:3.11-slim
RUN groupadd --gid 10001 beatkeeper \
    && useradd --uid 10001 --gid beatkeeper --home-dir /beatkeeper --shell /usr/sbin/nologin beatkeeper \
    && install -d -m 0750 -o beatkeeper -g beatkeeper /var/lib/beatkeeper /var/lib/beatkeeper/log_store /var/lib/beatkeeper/spool
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    BEATKEEPER_STATIC_ROOT=/beatkeeper/static_collected \
    BEATKEEPER_SPOOL_DIR=/var/lib/beatkeeper/spool \
    LOG_STORE_URL=file:///var/lib/beatkeeper/log_store
WORKDIR /beatkeeper
COPY --from=packages /venv /venv
COPY manage.py ./
COPY auditlog auditlog
COPY jobs jobs
COPY runs runs
COPY scheduler_project scheduler_project
# Settings insist on both; neither is used by this command nor kept in the image.
RUN SECRET_KEY=unused DATABASE_URL=postgresql://unused@unused/unused python manage.py collectstatic --no-input \
    && python -m compileall -q auditlog jobs runs scheduler_project
USER beatkeeper
EXPOSE 8000
CMD ["python", "manage.py", "serve", "--bind", "0.0.0.0:8000"]
