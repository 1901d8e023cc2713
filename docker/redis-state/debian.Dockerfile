# The image of `make image`: the root file system has Python from Debian packages and the wheel,
# put together by tools/image.py, because no base image is needed for that.
FROM scratch
ADD rootfs.tar /
USER 10001:10001
WORKDIR /tmp
ENV LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
EXPOSE 9464 8765
ENTRYPOINT ["/usr/bin/python3", "-m", "redis_state"]
CMD ["--help"]
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["/usr/bin/python3", "/usr/local/lib/redis-state/health.py"]
